package remote

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"atoll.dev/api/platform"
)

// Error is an error answer of a service, or the fact that it did not answer: then
// Status is 503, Code is CodeUnreachable, and Err has the reason.
type Error struct {
	Status     int    // HTTP status, also of errors that came over gRPC
	Code       string // stable, for programs
	Reason     string // for people
	RetryAfter time.Duration
	Fields     []platform.FieldError
	Quota      *platform.QuotaExcess // the quota that the request exceeds; nil for none

	// Unsent is true when the service cannot have received the request.
	Unsent bool
	Err    error

	Body []byte // of the answer
}

// CodeUnreachable is the code of an Error that no service answered.
const CodeUnreachable = "unreachable"

func (e *Error) Error() string {
	s := e.Code + ": " + e.Reason
	if e.Code == "" {
		s = e.Reason
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// StatusOf returns the HTTP status of an error of this package, and 0 for any
// other.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return 0
}

// errorOf returns the Error of an answer with a status of an error.
func errorOf(service string, status int, header http.Header, body []byte) *Error {
	e := &Error{Status: status, RetryAfter: retryAfter(header), Body: body}
	var wire struct {
		platform.Error        // of Maestro and of the Platform API
		Title, Detail  string // of CLM: a problem (RFC 9457)
	}
	if json.Unmarshal(body, &wire) == nil {
		if e.Reason = cmp.Or(wire.Reason, wire.Detail, wire.Title); e.Reason != "" {
			e.Code, e.Fields, e.Quota = wire.Code, wire.Errors, wire.Quota
			return e
		}
	}
	e.Code = "http-" + strconv.Itoa(status)
	e.Reason = fmt.Sprintf("%s answered %d %s", service, status, http.StatusText(status))
	if text := strings.TrimSpace(string(body)); text != "" && len(text) < 300 {
		e.Reason += ": " + text
	}
	return e
}

// retryAfter reads the seconds of Retry-After. The region's services do not send the form with a
// date.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// NewUnreachableError returns the Error of a service that did not answer. The service may have
// seen the request.
func NewUnreachableError(service string, err error) *Error {
	return &Error{
		Status: http.StatusServiceUnavailable, Code: CodeUnreachable,
		Reason: service + " does not answer", RetryAfter: time.Second, Err: err,
	}
}

// NewNotSentError returns the Error of a service that could not be reached: it cannot have seen
// the request.
func NewNotSentError(service string, err error) *Error {
	e := NewUnreachableError(service, err)
	e.Unsent = true
	return e
}
