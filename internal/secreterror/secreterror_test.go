package secreterror

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What a text about a refused object keeps of the API server's, and that it has no value.
func TestI11TextsOfRefusedSecretsHaveNoValue(t *testing.T) {
	const value = "hunter2"
	kind, resource := schema.GroupKind{Kind: "Secret"}, schema.GroupResource{Resource: "secrets"}
	const typed = "failed to create typed patch object (ns/s; /v1, Kind=Secret): "
	answer := func(code int32, reason metav1.StatusReason, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: reason, Message: message,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: value, Type: value}}}}}
	}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"schema", apierrors.NewInternalError(errors.New(typed + ".stringData.pin: expected string, got &{" + value + "}")),
			"does not match its schema, field .stringData.pin ("},
		{"schema, no answer", errors.New(typed + "errors:\n  .data.pin: expected string, got &{" + value + "}"),
			"does not match its schema, field .data.pin ("},
		{"schema, without a field", apierrors.NewBadRequest("failed to create typed live object: " + value),
			"does not match its schema ("},
		{"not decodable", apierrors.NewBadRequest(`error found in #10 byte of ...|"pin":"` + value + `"|...`), "BadRequest"},
		{"invalid", apierrors.NewInvalid(kind, "s", field.ErrorList{
			field.Invalid(field.NewPath("data").Key("pin"), value, "is weak"),
			field.Required(field.NewPath("type"), "")}), "data[pin]: FieldValueInvalid, field type: FieldValueRequired"},
		{"invalid and wrapped", fmt.Errorf("metadata %s: %w", value, apierrors.NewInvalid(kind, value, nil)), "Invalid"},
		{"webhook", answer(403, "", `admission webhook "a.b" denied the request: `+value),
			`webhook "a.b" refuses the object or fails`},
		{"webhook with a reason", answer(403, value, `admission webhook "a.b" denied the request: `+value), "Forbidden"},
		{"webhook without a usual name", answer(404, metav1.StatusReasonNotFound,
			`admission webhook "`+value+` x" denied the request: `+value), "admission refuses the object or fails: NotFound"},
		{"webhook that fails", apierrors.NewInternalError(errors.New(`failed calling webhook "a.b": got ` + value)),
			`admission webhook "a.b" refuses the object or fails: InternalError`},
		{"policy", apierrors.NewForbidden(resource, "s", errors.New(
			"ValidatingAdmissionPolicy 'p' with binding 'q' denied request: "+value)),
			`ValidatingAdmissionPolicy "p" refuses the object or fails: Forbidden`},
		{"no reason", answer(http.StatusTeapot, value, value), http.StatusText(http.StatusTeapot)},
		{"no code", answer(0, value, value), "no reason"},
		{"a proxy that quotes what it blocks", apierrors.NewGenericServerResponse(403, "PATCH", resource, "s",
			"blocked: "+value, 0, true), "Forbidden"},
		{"an aggregated API server", answer(422, metav1.StatusReasonInvalid, value), "Invalid (the full"},
	} {
		got := Hide(c.err)
		if strings.Contains(got.Error(), value) || !strings.Contains(got.Error(), c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if apierrors.ReasonForError(got) != apierrors.ReasonForError(c.err) {
			t.Errorf("%s: callers see the reason %q", c.name, apierrors.ReasonForError(got))
		}
	}
	for _, err := range []error{
		nil, errors.New("connection refused"),
		apierrors.NewForbidden(resource, "webhook-cert", errors.New(`User "a" cannot patch resource "secrets"`)),
		apierrors.NewConflict(resource, "s", errors.New("the object has been modified")),
		apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "n"),
		apierrors.NewTooManyRequests("later", 1),
	} {
		if got := Hide(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestFieldsOfATextAreBounded(t *testing.T) {
	var all field.ErrorList
	for i := range 200 {
		all = append(all, field.Required(field.NewPath("data").Key(fmt.Sprint(i)), ""))
	}
	got := Hide(apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "s", all)).Error()
	if !strings.Contains(got, "and 190 more") || len(got) > 700 {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}
