package arm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// Codes of errors, as Azure's clients know them.
const (
	codeInternal            = "InternalServerError"
	codeUnavailable         = "ServiceUnavailable"
	codeInvalidParameter    = "InvalidParameter"
	codeInvalidContent      = "InvalidRequestContent"
	codeInvalidResource     = "InvalidResource"
	codeInvalidResourceType = "InvalidResourceType"
	codeSeveralErrors       = "MultipleErrorsOccurred"
	codeUnsupportedMedia    = "UnsupportedMediaType"
	codeCanceled            = "Canceled"
	codeConflict            = "Conflict"
	codeNotFound            = "NotFound"
	codeResourceNotFound    = "ResourceNotFound"
	codeParentNotFound      = "ParentResourceNotFound"
	codeSubscriptionState   = "InvalidSubscriptionState"
	codeInvalidSubscription = "InvalidSubscriptionID"
	codeInvalidName         = "InvalidResourceName"
	codePrecondition        = "PreconditionFailed"
	codeForbidden           = "AuthorizationFailed"
	codeUnauthenticated     = "AuthenticationFailed"
	codeTooManyRequests     = "TooManyRequests"
	codeNotAllowed          = "MethodNotAllowed"
	codeQuotaExceeded       = "QuotaExceeded"
	codeNotImplemented      = "NotImplemented"
)

// errorDetail is one error of a body.
type errorDetail struct {
	Code    string        `json:"code"`
	Message string        `json:"message"`
	Target  string        `json:"target,omitempty"`
	Details []errorDetail `json:"details,omitempty"`
}

type errorBody struct {
	Error errorDetail `json:"error"`
}

// codesByStatus are the codes of errors that were made by the shared parts of the region's services.
var codesByStatus = map[int]string{
	http.StatusBadRequest: codeInvalidContent, http.StatusUnauthorized: codeUnauthenticated,
	http.StatusForbidden: codeForbidden, http.StatusNotFound: codeNotFound,
	http.StatusMethodNotAllowed: codeNotAllowed, http.StatusConflict: codeConflict,
	http.StatusPreconditionFailed: codePrecondition, http.StatusRequestEntityTooLarge: codeInvalidResource,
	http.StatusUnsupportedMediaType: codeUnsupportedMedia, http.StatusTooManyRequests: codeTooManyRequests,
	http.StatusServiceUnavailable: codeUnavailable, http.StatusNotImplemented: codeNotImplemented,
	http.StatusGatewayTimeout: codeUnavailable,
}

// codeOf returns the code of an error as Azure's clients know it.
func codeOf(e *rest.Error) string {
	if e.Code != "" && e.Code[0] >= 'A' && e.Code[0] <= 'Z' && !strings.ContainsAny(e.Code, "-_ ") {
		return e.Code
	}
	if code, known := codesByStatus[e.Status]; known {
		return code
	}
	return codeInternal
}

// errorBodyOf returns the body of an error, and sets the header of its code.
func errorBodyOf(ctx context.Context, e *rest.Error) any {
	body := errorBody{errorDetail{Code: codeOf(e), Message: e.Reason}}
	if e.Status == http.StatusNotFound && codeOf(e) == codeNotFound {
		body.Error.Message = "The requested path could not be found."
	}
	switch fields := e.Fields; {
	case len(fields) == 1:
		body.Error.Target = fields[0].Field
	case len(fields) > 1:
		for _, f := range fields {
			body.Error.Details = append(body.Error.Details, errorDetail{Code: codeInvalidContent, Message: f.Message,
				Target: f.Field})
		}
	}
	if q := requestOf(ctx); q != nil {
		q.header.Set("X-Ms-Error-Code", body.Error.Code)
	}
	return body
}

// invalid returns the answer to a request with wrong fields; nil when there are none.
func invalid(p problems) error {
	if len(p) == 0 {
		return nil
	}
	e := rest.Errorf(http.StatusBadRequest, codeInvalidContent, "%s", p[0].message)
	for _, one := range p {
		e.Fields = append(e.Fields, rest.FieldError{Field: one.target, Message: one.message})
	}
	if len(p) > 1 {
		e.Code, e.Reason = codeSeveralErrors, fmt.Sprintf("%d errors occurred", len(p))
	}
	return e
}

// conflict returns the answer to a request that the state of a resource does not permit. The target is
// the id of the resource.
func conflict(target, format string, args ...any) *rest.Error {
	e := rest.Errorf(http.StatusConflict, codeConflict, format, args...)
	e.Fields = []rest.FieldError{{Field: target, Message: e.Reason}}
	return e
}

// classify gives errors of the store and of the lifecycle manager an answer.
func classify(err error) *rest.Error {
	again := func(status int, code, reason string, after time.Duration) *rest.Error {
		e := rest.Errorf(status, code, "%s", reason).Because(err)
		e.RetryAfter = after
		return e
	}
	if busy, ok := errors.AsType[*ops.BusyError](err); ok {
		return again(http.StatusConflict, codeConflict, fmt.Sprintf("Cannot update resource while resource is %q",
			strings.ToLower(activeStateOf(busy.Active.Request))), 10*time.Second)
	}
	if fault, known := store.FaultOf(err); known {
		switch fault {
		case rest.FaultStale, rest.FaultExists: // 409 in ARM's contract
			return again(http.StatusConflict, codeConflict, "The resource was modified by another request. Please retry.",
				time.Second)
		case rest.FaultInvalid:
			return rest.Errorf(http.StatusBadRequest, codeInvalidContent, "The resource definition is invalid.").Because(err)
		case rest.FaultNotFound: // a handler answers what it has not found; this was removed after it was read
			return again(http.StatusConflict, codeConflict, "The resource was deleted by another request. Please retry.",
				time.Second)
		case rest.FaultFull:
			return fault.Errorf(codeUnavailable, "The service cannot write now; try again later.").Because(err)
		}
		return fault.Errorf(codeUnavailable, "The service is unavailable; try again.").Because(err)
	}
	if remote.StatusOf(err) != 0 {
		return again(http.StatusServiceUnavailable, codeUnavailable,
			"The region's lifecycle manager does not answer; try again.", time.Second)
	}
	return nil
}
