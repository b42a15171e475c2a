// Package apierror has the errors that clients of Maestro see: their codes, and their forms in REST and gRPC.
//
// It maps the store's errors to codes in one place. Only package maestro and its packages import it.
package apierror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "atoll.dev/api/maestro"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Codes of errors. The original Maestro has the numbers below 1000, except the numbers
// that equal an HTTP status: these are Atoll's, after the original's maestro-404.
const (
	CodeForbidden   = "maestro-4"
	CodeConflict    = "maestro-6"
	CodeNotFound    = "maestro-7"
	codeValidation  = "maestro-8"
	codeGeneral     = "maestro-9"
	codeMalformed   = "maestro-17"
	codeBadRequest  = "maestro-21"
	CodeNoRoute     = "maestro-404"
	CodeGone        = "maestro-410"
	CodeStale       = "maestro-412"
	codeTooLarge    = "maestro-413"
	codeTooMany     = "maestro-429"
	CodeUnavailable = "maestro-503"
	codeFull        = "maestro-507"
)

// Catalogue is the list of errors that GET /errors returns.
var Catalogue = []struct{ Code, Reason string }{
	{"maestro-1", "Invalid token"},
	{CodeForbidden, "Forbidden to perform this action"},
	{CodeConflict, "An entity with the specified unique values already exists, or has changed"},
	{CodeNotFound, "Resource not found"},
	{codeValidation, "General validation failure"},
	{codeGeneral, "Unspecified error"},
	{"maestro-10", "HTTP Method not implemented for this endpoint"},
	{"maestro-11", "Account is unauthorized to perform this action"},
	{"maestro-15", "Account authentication could not be verified"},
	{codeMalformed, "Unable to read request body"},
	{codeBadRequest, "Bad request"},
	{"maestro-23", "Failed to parse search query"},
	{"maestro-26", "Advisory lock failure"},
	{CodeNoRoute, "The requested resource doesn't exist"},
	{CodeGone, "The cursor of the watch is too old; watch anew"},
	{CodeStale, "The resource has changed; If-Match names an older version"},
	{codeTooLarge, "The request body is too large"},
	{codeTooMany, "The account has too many open watches; close one first"},
	{CodeUnavailable, "The database or the message broker is unavailable; try again"},
	{codeFull, "The database's disk is full; reads go on"},
	{"maestro-1000", "Internal error"},
}

// Document returns the body of an error, as Maestro's REST API has it.
func Document(code, reason, operation string) api.Error {
	id := strings.TrimPrefix(code, "maestro-")
	return api.Error{Kind: "Error", ID: id, Href: api.BasePath + "/errors/" + id, Code: code, Reason: reason,
		OperationID: operation}
}

// noRouteBody is the answer to a path that does not exist, which has a shape
// of its own.
type noRouteBody struct {
	Type   string `json:"type"`
	ID     string `json:"id"`
	Href   string `json:"href"`
	Code   string `json:"code"`
	Reason string `json:"reason"`
}

// Body shapes errors for the wire.
func Body(ctx context.Context, e *rest.Error) any {
	d := Document(wireCode(e), e.Reason, rest.OperationID(ctx))
	if d.Code == CodeNoRoute {
		return noRouteBody{Type: "Error", ID: d.ID, Href: d.Href, Code: d.Code, Reason: d.Reason}
	}
	return d
}

// wireCode returns Maestro's code for an error that package rest made.
func wireCode(e *rest.Error) string {
	if strings.HasPrefix(e.Code, "maestro-") {
		return e.Code
	}
	switch {
	case errors.Is(e, rest.ErrMalformed), errors.Is(e, rest.ErrEmpty):
		return codeMalformed
	case e.Status == http.StatusBadRequest:
		return codeBadRequest
	case e.Status == http.StatusNotFound:
		return CodeNotFound
	case e.Status == http.StatusForbidden:
		return CodeForbidden
	case e.Status == http.StatusPreconditionFailed:
		return CodeStale
	case e.Status == http.StatusRequestEntityTooLarge:
		return codeTooLarge
	case e.Status == http.StatusTooManyRequests:
		return codeTooMany
	case e.Status == http.StatusServiceUnavailable:
		return CodeUnavailable
	}
	return codeGeneral
}

// Classify answers the faults of the store. Handlers answer documents that exist or do not exist themselves.
func Classify(err error) *rest.Error {
	fault, _ := store.FaultOf(err)
	switch fault {
	case rest.FaultFull:
		return fault.Errorf(codeFull,
			"the database's disk is full: nothing can be written until there is room; reads go on").Because(err)
	case rest.FaultUnknownOutcome:
		return fault.Errorf(CodeUnavailable, "the connection to the database broke at the commit: "+
			"whether it was written is not known; read, then try again").Because(err)
	case rest.FaultUnavailable, rest.FaultBusy:
		return fault.Errorf(CodeUnavailable, "the database is unavailable; try again").Because(err)
	case rest.FaultTimeout:
		return fault.Errorf(CodeUnavailable, "the database took too long; try again").Because(err)
	case rest.FaultGone:
		return fault.Errorf(CodeGone,
			"the cursor is too old, or from before the database was restored; watch anew without it").Because(err)
	case rest.FaultInvalid:
		return fault.Errorf(codeValidation, "the document cannot be stored: %s", err).Because(err)
	}
	if stale, ok := errors.AsType[*store.StaleError](err); ok {
		return fault.Errorf(CodeStale, "the resource has changed: its version is %d, not %d; read it again",
			stale.Latest, stale.Asked).Because(err)
	}
	return nil
}

// NotFound returns the 404 about a resource that does not exist.
func NotFound(kind, id string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, CodeNotFound, "%s with id='%s' not found", kind, id)
}

// Unavailable returns a 503 that asks the client to try again after a second.
func Unavailable(reason string) *rest.Error {
	e := rest.Errorf(http.StatusServiceUnavailable, CodeUnavailable, "%s", reason)
	e.RetryAfter = time.Second
	return e
}

// rpcForm is the form of an error in a gRPC status.
type rpcForm int

const (
	KubernetesStatus rpcForm = iota // JSON that sdk-go's clients turn into a Kubernetes StatusError
	PlainText                       // the text alone
)

// RPCStatus turns an error into a gRPC status. Its message is the JSON that
// sdk-go's clients turn into a Kubernetes StatusError; the text inside is the
// original's, which clients search.
func RPCStatus(form rpcForm, doing string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if ctxCode := status.FromContextError(err).Code(); ctxCode == codes.Canceled || ctxCode == codes.DeadlineExceeded {
		return status.Error(ctxCode, err.Error())
	}
	e, ok := errors.AsType[*rest.Error](err)
	if !ok {
		e = Classify(err)
	}
	if e == nil {
		e = rest.Errorf(http.StatusInternalServerError, codeGeneral, "internal error; the server's log has it").Because(
			err)
	}
	code, reason := grpcReason(e)
	message := fmt.Sprintf("%s: %s: %s", doing, wireCode(e), e.Reason)
	if form == PlainText {
		return status.Error(code, message)
	}
	body, merr := json.Marshal(struct {
		ErrStatus metav1.Status
	}{metav1.Status{Status: metav1.StatusFailure, Message: message, Reason: reason, Code: int32(e.Status)}})
	if merr != nil {
		return status.Error(code, message)
	}
	return status.Error(code, string(body))
}

func grpcReason(e *rest.Error) (codes.Code, metav1.StatusReason) {
	switch e.Status {
	case http.StatusBadRequest:
		return codes.InvalidArgument, metav1.StatusReasonInvalid
	case http.StatusForbidden:
		return codes.PermissionDenied, metav1.StatusReasonForbidden
	case http.StatusNotFound:
		return codes.NotFound, metav1.StatusReasonNotFound
	case http.StatusConflict:
		if e.Reason == AlreadyExists {
			return codes.AlreadyExists, metav1.StatusReasonAlreadyExists
		}
		return codes.Aborted, metav1.StatusReasonConflict
	case http.StatusPreconditionFailed:
		return codes.FailedPrecondition, metav1.StatusReasonConflict
	case http.StatusRequestEntityTooLarge:
		return codes.InvalidArgument, metav1.StatusReasonRequestEntityTooLarge
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return codes.Unavailable, metav1.StatusReasonServiceUnavailable
	case http.StatusInsufficientStorage:
		return codes.ResourceExhausted, metav1.StatusReasonServiceUnavailable
	}
	return codes.Internal, metav1.StatusReasonInternalError
}

// AlreadyExists is the original's text.
const AlreadyExists = "This Resource already exists"

// Invalid returns the error for a request whose content is wrong.
func Invalid(format string, args ...any) *rest.Error {
	return rest.Errorf(http.StatusBadRequest, codeValidation, format, args...)
}

// BadRequest refuses a request whose form is wrong.
func BadRequest(format string, args ...any) *rest.Error {
	return rest.Errorf(http.StatusBadRequest, codeBadRequest, format, args...)
}

// ReasonOf is the text of an error without its code.
func ReasonOf(err error) string {
	if e, ok := err.(*rest.Error); ok {
		return e.Reason
	}
	return err.Error()
}
