package clm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Codes of errors, hyperfleet-api's.
const (
	codeValidation  = "HYPERFLEET-VAL-000"
	codeBadRequest  = "HYPERFLEET-VAL-005"
	codeMalformed   = "HYPERFLEET-VAL-006"
	codeNoIdentity  = "HYPERFLEET-AUT-001"
	codeBadToken    = "HYPERFLEET-AUT-002"
	codeExpired     = "HYPERFLEET-AUT-003"
	codeForbidden   = "HYPERFLEET-AUZ-001"
	codeNoRoute     = "HYPERFLEET-NTF-000"
	codeNotFound    = "HYPERFLEET-NTF-001"
	codeExists      = "HYPERFLEET-CNF-001"
	codeStale       = "HYPERFLEET-CNF-002"
	codeState       = "HYPERFLEET-CNF-003"
	codeDatabase    = "HYPERFLEET-INT-002"
	codeGeneral     = "HYPERFLEET-INT-001"
	codeLimit       = "HYPERFLEET-LMT-001"
	codeQuota       = "HYPERFLEET-LMT-002"
	codeUnavailable = "HYPERFLEET-SVC-001"
	codeTimeout     = "HYPERFLEET-SVC-002"
)

// problems has the type and the title of a problem by its code.
var problems = map[string]struct{ slug, title string }{
	codeValidation:  {"validation-error", "Validation Failed"},
	codeBadRequest:  {"bad-request", "Bad Request"},
	codeMalformed:   {"malformed-request", "Malformed Request"},
	codeNoIdentity:  {"authentication-error", "Authentication Required"},
	codeBadToken:    {"authentication-error", "Invalid Credentials"},
	codeExpired:     {"authentication-error", "Invalid Token"},
	codeForbidden:   {"permission-denied", "Forbidden"},
	codeNoRoute:     {"not-found", "Endpoint Not Found"},
	codeNotFound:    {"not-found", "Resource Not Found"},
	codeExists:      {"conflict", "Resource Conflict"},
	codeStale:       {"conflict", "Version Conflict"},
	codeState:       {"conflict", "State Conflict"},
	codeLimit:       {"rate-limit", "Rate Limit Exceeded"},
	codeQuota:       {"quota-exceeded", "Quota Exceeded"},
	codeGeneral:     {"internal-error", "Internal Server Error"},
	codeDatabase:    {"internal-error", "Database Error"},
	codeUnavailable: {"service-unavailable", "Service Unavailable"},
	codeTimeout:     {"service-unavailable", "Service Timeout"},
}

// constraints maps the violated constraint of a field to the contract's word for it. Answers show no other
// constraints.
var constraints = map[string]string{
	"required": "required", "min": "min", "max": "max", "min_length": "min_length", "max_length": "max_length",
	"pattern": "pattern", "enum": "enum", "format": "format", "unique": "unique",
	// OpenAPI's words.
	"minimum": "min", "maximum": "max", "minLength": "min_length", "maxLength": "max_length", "uniqueItems": "unique",
}

type instanceKey struct{}

// withInstance returns a context with the path of a request, for its problem.
func withInstance(ctx context.Context, path string) context.Context {
	return context.WithValue(ctx, instanceKey{}, path)
}

// problem returns the body of an error's answer, a problem of RFC 9457.
func problem(ctx context.Context, e *rest.Error) any {
	code := wireCode(e)
	p := api.Problem{Status: e.Status, Detail: e.Reason, Code: code, Timestamp: time.Now().UTC(),
		TraceID: rest.OperationID(ctx)}
	p.Type, p.Title = "https://api.hyperfleet.io/errors/"+problems[code].slug, problems[code].title
	p.Instance, _ = ctx.Value(instanceKey{}).(string)
	for _, f := range e.Fields {
		p.Errors = append(p.Errors, api.ProblemField{Field: f.Field, Value: f.Value,
			Constraint: constraints[f.Constraint], Message: f.Message})
	}
	if q := e.Quota; q != nil {
		p.Quota = &api.QuotaExcess{Name: q.Name, Limit: q.Limit, Used: q.Used, Asked: q.Asked}
	}
	return p
}

// wireCode returns the contract's code of an error; package rest makes errors with other codes.
func wireCode(e *rest.Error) string {
	if _, ours := problems[e.Code]; ours {
		return e.Code
	}
	switch {
	case errors.Is(e, rest.ErrType):
		return codeValidation
	case errors.Is(e, rest.ErrMalformed), errors.Is(e, rest.ErrEmpty):
		return codeMalformed
	case e.Status == http.StatusUnauthorized:
		return codeNoIdentity
	case e.Status == http.StatusForbidden:
		return codeForbidden
	case e.Status == http.StatusNotFound:
		return codeNoRoute
	case e.Status == http.StatusPreconditionFailed:
		return codeStale
	case e.Status == http.StatusTooManyRequests:
		return codeLimit
	case e.Status == http.StatusServiceUnavailable:
		return codeUnavailable
	case e.Status < http.StatusInternalServerError:
		return codeBadRequest
	}
	return codeGeneral
}

// faultWords are the codes and the words of hyperfleet-api's contract for the faults of the store.
var faultWords = map[rest.Fault]struct{ code, words string }{
	rest.FaultStale:       {codeStale, "the resource has changed since; read it again"},
	rest.FaultExists:      {codeExists, "a resource of that name already exists"},
	rest.FaultNotFound:    {codeNotFound, "the resource, or one that it belongs to, was removed meanwhile"},
	rest.FaultGone:        {codeState, "the cursor is too old; list again"},
	rest.FaultFull:        {codeUnavailable, "the database's disk is full; nothing can be written, reads go on"},
	rest.FaultUnavailable: {codeUnavailable, "the database is unavailable; try again"},
	rest.FaultTimeout:     {codeTimeout, "the database took too long; try again"},
	rest.FaultBusy:        {codeUnavailable, "the database is too busy; try again"},
	rest.FaultUnknownOutcome: {codeUnavailable,
		"the database went away while it committed; read the resource to see what became of the request"},
}

// classify returns the answer to an error of the store or the database, nil to other errors.
func classify(err error) *rest.Error {
	if refusal := quotaExceeded(err); refusal != nil {
		return refusal
	}
	fault, ok := store.FaultOf(err)
	switch {
	case fault == rest.FaultInvalid:
		return fault.Errorf(codeBadRequest, "this cannot be stored: %s", err).Because(err)
	case ok:
		w := faultWords[fault]
		return fault.Errorf(w.code, "%s", w.words).Because(err)
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return rest.Errorf(http.StatusInternalServerError, codeDatabase,
			"a database error; the region's log has it under the trace_id").Because(err)
	}
	return nil
}

// missing returns the 404 for a resource of any kind that does not exist. Adapters
// distinguish it from an unknown path by its code.
func missing(e *Entity, id string) error {
	return rest.Errorf(http.StatusNotFound, codeNotFound, "%s with id='%s' not found", e.Kind, id)
}

// fieldError returns an error about one field. The message is a predicate whose
// subject is the field: "is required", as clients of the original expect it.
func fieldError(httpStatus int, code, field, constraint, message string) *rest.Error {
	e := rest.Errorf(httpStatus, code, "%s %s", field, message)
	e.Fields = []rest.FieldError{{Field: field, Constraint: constraint, Message: message}}
	return e
}

// fieldErrors returns an error about several fields, or nil.
func fieldErrors(fields []rest.FieldError) error {
	if len(fields) == 0 {
		return nil
	}
	messages := make([]string, len(fields))
	for i, f := range fields {
		messages[i] = f.Field + " " + f.Message
	}
	e := rest.Errorf(http.StatusBadRequest, codeValidation, "%s", strings.Join(messages, "; "))
	e.Fields = fields
	return e
}

// raw returns v as JSON, nil if it cannot be encoded.
func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
