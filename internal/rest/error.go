// Package rest holds what every HTTP service of the region shares: handlers
// that return errors and the one place that turns an error into an answer,
// strict reading and writing of JSON, entity tags, paging, field selection,
// ordering, watch streams, and a server that stops gracefully and says what it
// is missing.
//
// A service registers Handlers on a Mux, puts its own middleware around the
// Mux, and wraps the whole with Observe. What differs between services, the
// shape of an error body and the meaning of the errors of its tools, is given
// to Observe as functions, so that this package knows neither a service nor
// the store.
//
// Services and fronts import it. It imports no package of ours.
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

// Error is an error with an answer: what the caller is told, and what only the
// log is told.
type Error struct {
	Status int    // HTTP status
	Code   string // stable, for programs
	Reason string // what is wrong and what to do about it, for people

	// Type, when set, is sent as the header x-amzn-ErrorType. AWS's clients
	// know errors by it.
	Type string

	Fields     []FieldError  // which fields are wrong, for 422
	RetryAfter time.Duration // sent in whole seconds, rounded up, when not zero
	Header     http.Header   // further headers of the answer

	// Err is the cause. It is logged when the status is 5xx, and never shown.
	Err error
}

// A FieldError says what is wrong with one field of a request. Value and
// Constraint are for the contracts that show them.
type FieldError struct {
	Field      string          `json:"field"`
	Message    string          `json:"message"`
	Value      json.RawMessage `json:"-"`
	Constraint string          `json:"-"`
}

func (e *Error) Error() string {
	s := e.Code + ": " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error. Everything in the reason is shown to the caller, so
// causes do not belong in it; use Because.
func Errorf(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Reason: fmt.Sprintf(format, args...)}
}

// Because returns e with its cause.
func (e *Error) Because(err error) *Error {
	c := *e
	c.Err = err
	return &c
}

// ErrorBody renders an error for the wire, as the service's contract wants it.
// OperationID(ctx) is the id of the request.
type ErrorBody func(ctx context.Context, e *Error) any

// PlatformError is the body of the Platform API:
// {"kind":"Error","code":"...","reason":"..."}, with "errors" when fields are
// named, and the reason again as "message" for AWS's clients when the error
// has an AWS type.
func PlatformError(_ context.Context, e *Error) any {
	body := platformError{Kind: "Error", Code: e.Code, Reason: e.Reason, Errors: e.Fields}
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
}

// Fail answers r with err. Handlers return errors and need not call it;
// middleware that runs before them does.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	e := c.classify(r, err)
	c.failed = e.Code
	if e.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		switch e.Status {
		case http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusInsufficientStorage:
			level = slog.LevelWarn // a dependency is down, slow or full; its owner logs why
		}
		c.opts.Log.LogAttrs(r.Context(), level, "request failed",
			slog.String("operation_id", c.id), slog.String("method", r.Method),
			slog.String("path", r.URL.Path), slog.Int("status", e.Status),
			slog.String("code", e.Code), slog.Any("error", err))
	}
	if started(w) {
		// Half of an answer is out. Cutting the connection is the only way
		// left to say that the other half will not come.
		panic(http.ErrAbortHandler)
	}
	h := w.Header()
	for _, k := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		h.Del(k) // meant for the answer that did not come about
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

// statusGone is nginx's status for a client that left; nobody receives it, it
// keeps such requests apart in logs and metrics.
const statusGone = 499

// classify finds the answer to err: the error's own, the service's table, then
// what every service has in common, and at last 500.
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
		return Errorf(statusGone, "client-gone", "the client closed the connection").Because(err)
	case errors.Is(err, context.DeadlineExceeded):
		return FaultTimeout.Errorf("timeout", "the request took too long; try again").Because(err)
	}
	return Errorf(http.StatusInternalServerError, "internal-error",
		"internal error; the region's log has it under operation id %s", c.id).Because(err)
}

// renderError is the error as an object of a watch stream.
func (c *call) renderError(ctx context.Context, e *Error) json.RawMessage {
	b, err := json.Marshal(c.opts.ErrorBody(ctx, e))
	if err != nil {
		return json.RawMessage(`{"kind":"Error"}`)
	}
	return b
}
