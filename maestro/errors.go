package maestro

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

// Codes of errors. The numbers below 1000 are the original's; those that equal
// an HTTP status are ours, after its maestro-404.
const (
	codeForbidden   = "maestro-4"
	codeConflict    = "maestro-6"
	codeNotFound    = "maestro-7"
	codeValidation  = "maestro-8"
	codeGeneral     = "maestro-9"
	codeMalformed   = "maestro-17"
	codeBadRequest  = "maestro-21"
	codeNoRoute     = "maestro-404"
	codeGone        = "maestro-410"
	codeStale       = "maestro-412"
	codeTooLarge    = "maestro-413"
	codeTooMany     = "maestro-429"
	codeUnavailable = "maestro-503"
	codeFull        = "maestro-507"
)

// catalogue is what /errors serves.
var catalogue = []struct{ code, reason string }{
	{"maestro-1", "Invalid token"},
	{codeForbidden, "Forbidden to perform this action"},
	{codeConflict, "An entity with the specified unique values already exists, or has changed"},
	{codeNotFound, "Resource not found"},
	{codeValidation, "General validation failure"},
	{codeGeneral, "Unspecified error"},
	{"maestro-10", "HTTP Method not implemented for this endpoint"},
	{"maestro-11", "Account is unauthorized to perform this action"},
	{"maestro-15", "Account authentication could not be verified"},
	{codeMalformed, "Unable to read request body"},
	{codeBadRequest, "Bad request"},
	{"maestro-23", "Failed to parse search query"},
	{"maestro-26", "Advisory lock failure"},
	{codeNoRoute, "The requested resource doesn't exist"},
	{codeGone, "The cursor of the watch is too old; watch anew"},
	{codeStale, "The resource has changed; If-Match names an older version"},
	{codeTooLarge, "The request body is too large"},
	{codeTooMany, "The account has too many open watches; close one first"},
	{codeUnavailable, "The database or the message broker is unavailable; try again"},
	{codeFull, "The database's disk is full; reads go on"},
	{"maestro-1000", "Internal error"},
}

func errorDocument(code, reason, operation string) api.Error {
	id := strings.TrimPrefix(code, "maestro-")
	return api.Error{Kind: "Error", ID: id, Href: basePath + "/errors/" + id, Code: code, Reason: reason,
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

// errorBody shapes errors for the wire.
func errorBody(ctx context.Context, e *rest.Error) any {
	d := errorDocument(wireCode(e), e.Reason, rest.OperationID(ctx))
	if d.Code == codeNoRoute {
		return noRouteBody{Type: "Error", ID: d.ID, Href: d.Href, Code: d.Code, Reason: d.Reason}
	}
	return d
}

// wireCode gives errors that package rest made a code of ours.
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
		return codeNotFound
	case e.Status == http.StatusForbidden:
		return codeForbidden
	case e.Status == http.StatusPreconditionFailed:
		return codeStale
	case e.Status == http.StatusRequestEntityTooLarge:
		return codeTooLarge
	case e.Status == http.StatusTooManyRequests:
		return codeTooMany
	case e.Status == http.StatusServiceUnavailable:
		return codeUnavailable
	}
	return codeGeneral
}

// classify answers the faults of the store. Handlers answer documents that exist or do not exist themselves.
func classify(err error) *rest.Error {
	fault, _ := store.FaultOf(err)
	switch fault {
	case rest.FaultFull:
		return fault.Errorf(codeFull,
			"the database's disk is full: nothing can be written until there is room; reads go on").Because(err)
	case rest.FaultUnknownOutcome:
		return fault.Errorf(codeUnavailable, "the connection to the database broke at the commit: "+
			"whether it was written is not known; read, then try again").Because(err)
	case rest.FaultUnavailable, rest.FaultBusy:
		return fault.Errorf(codeUnavailable, "the database is unavailable; try again").Because(err)
	case rest.FaultTimeout:
		return fault.Errorf(codeUnavailable, "the database took too long; try again").Because(err)
	case rest.FaultGone:
		return fault.Errorf(codeGone,
			"the cursor is too old, or from before the database was restored; watch anew without it").Because(err)
	case rest.FaultInvalid:
		return fault.Errorf(codeValidation, "the document cannot be stored: %s", err).Because(err)
	}
	if stale, ok := errors.AsType[*store.StaleError](err); ok {
		return fault.Errorf(codeStale, "the resource has changed: its version is %d, not %d; read it again",
			stale.Latest, stale.Asked).Because(err)
	}
	return nil
}

func notFound(kind, id string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, codeNotFound, "%s with id='%s' not found", kind, id)
}

func unavailable(reason string) *rest.Error {
	e := rest.Errorf(http.StatusServiceUnavailable, codeUnavailable, "%s", reason)
	e.RetryAfter = time.Second
	return e
}

// grpcError turns an error into a gRPC status. Its message is the JSON that
// sdk-go's clients turn into a Kubernetes StatusError; the text inside is the
// original's, which clients search.
func (s *Server) grpcError(doing string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if ctxCode := status.FromContextError(err).Code(); ctxCode == codes.Canceled || ctxCode == codes.DeadlineExceeded {
		return status.Error(ctxCode, err.Error())
	}
	e, ok := errors.AsType[*rest.Error](err)
	if !ok {
		e = classify(err)
	}
	if e == nil {
		e = rest.Errorf(http.StatusInternalServerError, codeGeneral, "internal error; the server's log has it").Because(
			err)
	}
	code, reason := grpcReason(e)
	message := fmt.Sprintf("%s: %s: %s", doing, wireCode(e), e.Reason)
	if s.opts.PlainErrors {
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
		if e.Reason == alreadyExists {
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

// alreadyExists is the original's text.
const alreadyExists = "This Resource already exists"
