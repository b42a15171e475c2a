// Package rest has the parts that all HTTP services of the region share: handlers
// that return errors and the one place that turns an error into an answer,
// strict reading and writing of JSON, entity tags, paging, field selection,
// ordering, watch streams, a server that stops gracefully, and readiness checks.
//
// A service registers Handlers on a Mux, puts its own middleware around the
// Mux, and wraps the whole with Observe. Services differ in the shape of an error
// body and in the answers to the errors of their tools. They give both to Observe
// as functions, so that this package depends neither on a service nor on the store.
//
// Services and fronts import it. It imports no other package of Atoll.
package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// Error is an error with its answer. The answer shows all fields but Err, which goes
// only to the log.
type Error struct {
	Status int    // HTTP status
	Code   string // stable, for programs
	Reason string // the mistake and the next step, for people

	// Type, when set, is sent as the header x-amzn-ErrorType, by which AWS's clients
	// distinguish errors.
	Type string

	Fields     []FieldError  // the wrong fields, for 422
	RetryAfter time.Duration // sent in whole seconds, rounded up, when not zero
	Header     http.Header   // further headers of the answer
	Quota      *QuotaExcess  // the quota that the request exceeds, for 403; nil for none

	// Err is the cause. It is logged if the status is 5xx, and never sent to the client.
	Err error
}

// A FieldError describes the mistake in one field of a request. Only some contracts
// show Value and Constraint.
type FieldError struct {
	Field      string          `json:"field"`
	Message    string          `json:"message"`
	Value      json.RawMessage `json:"-"`
	Constraint string          `json:"-"`
}

// QuotaExcess is a quota of an account and the request that exceeds it.
type QuotaExcess struct {
	Name  string `json:"name"`
	Limit int64  `json:"limit"`
	Used  int64  `json:"used"`  // before the request
	Asked int64  `json:"asked"` // what the request needs in addition to Used
}

func (e *Error) Error() string {
	s := e.Code + ": " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error. The caller sees the whole reason, so do not put causes into
// it; add them with Because.
func Errorf(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Reason: fmt.Sprintf(format, args...)}
}

// Because returns a copy of e with a cause.
func (e *Error) Because(err error) *Error {
	c := *e
	c.Err = err
	return &c
}

// ErrorBody returns the body of an error's answer, in the shape of the service's
// contract. OperationID(ctx) is the id of the request.
type ErrorBody func(ctx context.Context, e *Error) any

// PlatformError returns the error body of the Platform API:
// {"kind":"Error","code":"...","reason":"..."}, with "errors" when fields are
// named, with "quota" when a quota is exceeded, and the reason again as "message"
// for AWS's clients when the error has an AWS type.
func PlatformError(_ context.Context, e *Error) any {
	body := platformError{Kind: "Error", Code: e.Code, Reason: e.Reason, Errors: e.Fields, Quota: e.Quota}
	if e.Type != "" {
		body.Message = e.Reason
	}
	return body
}

type platformError struct {
	Kind    string       `json:"kind"`
	Code    string       `json:"code"`
	Reason  string       `json:"reason"`
	Message string       `json:"message,omitempty"`
	Errors  []FieldError `json:"errors,omitempty"`
	Quota   *QuotaExcess `json:"quota,omitempty"`
}

// Fail answers r with err and logs errors of status 5xx, at the level of levelOf. Handlers return errors and need
// not call it; middleware that runs before them calls it. If a part of an answer has been
// sent already, Fail panics with http.ErrAbortHandler, which closes the connection.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	e := c.classify(r, err)
	c.errorCode = e.Code
	if e.Status >= http.StatusInternalServerError {
		c.opts.Log.LogAttrs(r.Context(), levelOf(e.Status), "request failed",
			slog.String("operation_id", c.id), slog.String("method", r.Method),
			slog.String("path", Shorten(r.URL.Path, 256)), slog.Int("status", e.Status),
			slog.String("code", e.Code), slog.Any("error", err))
	}
	if hasStarted(w) {
		// A part of the answer has been sent. Only a closed connection can show the
		// client that the rest does not come.
		panic(http.ErrAbortHandler)
	}
	h := w.Header()
	for _, k := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		h.Del(k) // the handler set it for its own answer
	}
	for k, v := range e.Header {
		h[k] = v
	}
	if e.Type != "" {
		h.Set("X-Amzn-Errortype", e.Type)
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	if err := writeJSON(w, e.Status, c.opts.ErrorType, c.opts.ErrorBody(r.Context(), e)); err != nil {
		c.opts.Log.LogAttrs(r.Context(), slog.LevelDebug, "error answer not delivered",
			slog.String("operation_id", c.id), slog.Any("error", err))
	}
}

// levelOf returns the level at which an answer of status 5xx is logged.
func levelOf(status int) slog.Level {
	switch status {
	case http.StatusNotImplemented:
		return slog.LevelInfo // the service does not have what the client wants, and nothing has failed
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusInsufficientStorage:
		return slog.LevelWarn // a dependency is down, slow or full; its owner logs why
	}
	return slog.LevelError
}

// statusClientClosed is nginx's status for a client that has closed the connection. No client
// receives it; logs and metrics show it.
const statusClientClosed = 499

// classify returns the answer to err: err itself if it is an *Error, else the answer of
// the service's Classify, else that of the errors that all services share, else 500.
func (c *call) classify(r *http.Request, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if c.opts.Classify != nil {
		if e := c.opts.Classify(err); e != nil {
			return e
		}
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return Errorf(http.StatusRequestEntityTooLarge, CodeTooLarge,
			"the request body is larger than %d bytes; send less", e.Limit).Because(ErrTooLarge)
	}
	switch {
	case r.Context().Err() != nil && errors.Is(err, context.Canceled):
		return Errorf(statusClientClosed, "client-gone", "the client closed the connection").Because(err)
	case errors.Is(err, context.DeadlineExceeded):
		return FaultTimeout.Errorf("timeout", "the request took too long; try again").Because(err)
	}
	return Errorf(http.StatusInternalServerError, "internal-error",
		"internal error; the region's log has it under operation id %s", c.id).Because(err)
}

// renderError returns the error as an object of a watch stream.
func (c *call) renderError(ctx context.Context, e *Error) json.RawMessage {
	b, err := json.Marshal(c.opts.ErrorBody(ctx, e))
	if err != nil {
		return json.RawMessage(`{"kind":"Error"}`)
	}
	return b
}
