// Package secreterror hides texts of a Kubernetes API server that may quote the values of a Secret.
//
// An API server quotes an object that it refuses: `Invalid value: "hunter2"`, a part of JSON that it cannot decode, the
// text of an admission webhook or policy. Such a text would come into statuses, events and logs (I11). Callers use the
// package for objects that have Secrets, as package api/work defines them.
package secreterror

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Hide returns an error for a refused object that has Secrets. Its text has no value of them. The outcomes:
//
//   - err itself, when it is nil; when it is no answer of an API server and does not read like one; or when the API
//     server composes the text without the object's content, such as that of a missing right, a quota or a conflict.
//   - Otherwise an error that wraps err, for errors.As and errors.Is. Its text has the reason, the refused fields and
//     their kinds of errors, or the name of the webhook or policy.
//
// A caller shows the text, and not that of a wrapped error.
func Hide(err error) error {
	if err == nil {
		return nil
	}
	var answer apierrors.APIStatus
	isAnswer := errors.As(err, &answer)
	status := metav1.Status{}
	if isAnswer {
		status = answer.Status()
	}
	text := err.Error()
	switch admission, isAdmission := findAdmission(text); {
	case isAdmission:
		return &hidden{fmt.Sprintf("%s refuses the object or fails: %s%s", admission, reasonOf(status), explanation), err}
	case typedError.MatchString(text):
		return &hidden{fmt.Sprintf("the object does not match its schema%s%s", typedField(text), explanation), err}
	case !isAnswer || isContentFree(status):
		return err
	}
	return &hidden{fmt.Sprintf("the API server refuses the object: %s%s%s", reasonOf(status), fieldsOf(status),
		explanation), err}
}

// explanation ends the texts of Hide.
const explanation = " (the full text is not shown: it may quote a Secret)"

// hidden is an error with another text.
type hidden struct {
	text string
	err  error
}

func (h *hidden) Error() string { return h.text }

func (h *hidden) Unwrap() error { return h.err }

// webhooks and policies match the names that an API server gives to the webhook or policy that refused an object, or
// failed. A webhook chooses the rest of its text, the code and the reason, as does the expression of a policy.
var (
	webhooks = regexp.MustCompile(`(?:admission webhook|failed calling webhook) "([A-Za-z0-9.-]+)"`)
	policies = regexp.MustCompile(`ValidatingAdmissionPolicy '([A-Za-z0-9.-]+)'`)
)

// findAdmission returns the webhook or policy that a text is about, or "admission" when the text does not name it.
// isAdmission is false when the text is about neither.
func findAdmission(text string) (name string, isAdmission bool) {
	if m := webhooks.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("admission webhook %q", m[1]), true
	}
	if m := policies.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("ValidatingAdmissionPolicy %q", m[1]), true
	}
	for _, phrase := range []string{"admission webhook ", "calling webhook", "denied the request", "AdmissionPolicy "} {
		if strings.Contains(text, phrase) {
			return "admission", true
		}
	}
	return "", false
}

// typedError matches the text of a server-side apply that does not match the schema. The path of the first field is
// before the first value.
var typedError = regexp.MustCompile(
	`failed to create typed (?:patch|live) object(?: \([^()]*\): (?:errors:\s*)?(\.[A-Za-z0-9_.-]+): )?`)

// typedField returns ", field PATH" for the first field that a typedError names, and "" when it names none.
func typedField(text string) string {
	if m := typedError.FindStringSubmatch(text); m != nil && m[1] != "" {
		return ", field " + m[1]
	}
	return ""
}

// isContentFree reports whether the API server composes the text of an answer without the content of the object. An
// answer that is no Status has the text of somebody in between, such as a proxy that quotes what it blocks.
func isContentFree(s metav1.Status) bool {
	isForeign := func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeUnexpectedServerResponse }
	if s.Details != nil && slices.ContainsFunc(s.Details.Causes, isForeign) {
		return false
	}
	switch s.Reason {
	case metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound,
		metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict, metav1.StatusReasonGone,
		metav1.StatusReasonExpired, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable,
		metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonMethodNotAllowed,
		metav1.StatusReasonStoreReadError:
		return true
	}
	return false
}

// reasonOf returns the reason of an answer, or the text of its HTTP status when the reason is not one of the API
// server's: a webhook may set any.
func reasonOf(s metav1.Status) string {
	switch s.Reason {
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonInternalError,
		metav1.StatusReasonNotAcceptable, metav1.StatusReasonUnsupportedMediaType:
		return string(s.Reason)
	}
	if isContentFree(s) {
		return string(s.Reason)
	}
	if text := http.StatusText(int(s.Code)); text != "" {
		return text
	}
	return "no reason"
}

const (
	maxFields = 10  // in a text
	maxField  = 200 // bytes of a field's path; a longer one is left out
)

// causes are the kinds of errors of invalid fields. An aggregated API server may set any other text.
var causes = []field.ErrorType{field.ErrorTypeNotFound, field.ErrorTypeRequired, field.ErrorTypeDuplicate,
	field.ErrorTypeInvalid, field.ErrorTypeNotSupported, field.ErrorTypeForbidden, field.ErrorTypeTooLong,
	field.ErrorTypeTooMany, field.ErrorTypeInternal, field.ErrorTypeTypeInvalid}

// fieldsOf returns the fields that an API server finds invalid, each with the kind of its error: ", field data[a]:
// FieldValueInvalid". Do not call it for the answer of a webhook: a webhook may set any fields.
func fieldsOf(s metav1.Status) string {
	if s.Reason != metav1.StatusReasonInvalid || s.Details == nil {
		return ""
	}
	var text strings.Builder
	for i, c := range s.Details.Causes {
		if i == maxFields {
			fmt.Fprintf(&text, ", and %d more", len(s.Details.Causes)-i)
			break
		}
		if c.Field != "" && len(c.Field) <= maxField && slices.Contains(causes, field.ErrorType(c.Type)) {
			fmt.Fprintf(&text, ", field %s: %s", c.Field, c.Type)
		}
	}
	return text.String()
}
