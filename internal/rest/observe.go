package rest

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options are the parameters of Observe. The zero value is useful.
type Options struct {
	Log *slog.Logger // default slog.Default()

	// ErrorBody makes the bodies of error answers. Default PlatformError.
	ErrorBody ErrorBody

	// ErrorType is the content type of error answers. Default application/json.
	ErrorType string

	// Classify maps errors of the service's tools to answers, for example a
	// database that is down to 503. It returns nil for an unknown error. Fail calls it
	// only for errors that are not an *Error.
	Classify func(error) *Error

	// IDHeaders has the headers with the operation id in every answer. The id of a
	// request is the first valid one in these headers, or a new one. Default
	// X-Operation-ID.
	IDHeaders []string

	// Metrics, when set, gets http_requests_total and
	// http_request_duration_seconds, by route, method and status.
	Metrics prometheus.Registerer

	// Observed, when set, is called after each answer.
	Observed func(Answered)

	// Trace, when set, begins a span for each request. The handler gets its context;
	// end is called with the route and the status.
	Trace func(*http.Request) (ctx context.Context, end func(route string, status int))
}

// Answered describes a request that was answered.
type Answered struct {
	Method  string
	Route   string // the pattern that matched, "" if none did
	Status  int
	Took    time.Duration
	IsWatch bool // Took depends only on how long the client watched
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.ErrorBody == nil {
		o.ErrorBody = PlatformError
	}
	if len(o.IDHeaders) == 0 {
		o.IDHeaders = []string{"X-Operation-ID"}
	}
	return o
}

// call is the state of one request in Observe.
type call struct {
	opts      *Options
	id        string
	route     string // the pattern that matched
	errorCode string // of the error that was answered
	isWatch   bool   // the duration metric skips watches
}

type callKey struct{}

var defaults = Options{}.withDefaults()

// callOf returns the request's call, or a new one for a handler that runs
// without Observe, as in a test of the handler alone.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{opts: &defaults}
}

// OperationID returns the id of the request that ctx belongs to. The answer, the log
// lines and the records of the service's work for the request have it. It is empty outside
// Observe.
func OperationID(ctx context.Context) string { return callOf(ctx).id }

// Observe is the outermost handler of a service:
//
//	request -> Observe -> the service's middleware -> Mux -> Handler
//
// It gives the request an id, answers panics with 500, writes the access log at level
// debug, updates metrics, and holds the Options that Fail uses.
func Observe(o Options, next http.Handler) http.Handler {
	o = o.withDefaults()
	m := newHTTPMetrics(o.Metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		c := &call{opts: &o, id: inboundID(r.Header, o.IDHeaders)}
		if c.id == "" {
			c.id = rand.Text()
		}
		for _, h := range o.IDHeaders {
			w.Header().Set(h, c.id)
		}
		rec := &recorder{ResponseWriter: w}
		ctx, end := r.Context(), func(string, int) {}
		if o.Trace != nil {
			ctx, end = o.Trace(r)
		}
		r = r.WithContext(context.WithValue(ctx, callKey{}, c))

		aborted := true
		defer func() {
			status := rec.status
			if aborted || status == 0 {
				status = statusClientClosed
			}
			took := time.Since(start)
			m.observe(c, r.Method, status, took)
			if o.Observed != nil {
				o.Observed(Answered{Method: r.Method, Route: c.route, Status: status, Took: took, IsWatch: c.isWatch})
			}
			end(c.route, status)
			// Without the query: the query of a presigned request is a credential.
			o.Log.LogAttrs(r.Context(), slog.LevelDebug, "request",
				slog.String("operation_id", c.id), slog.String("method", r.Method),
				slog.String("path", r.URL.Path), slog.String("route", c.route),
				slog.Int("status", status), slog.Int64("bytes", rec.bytes),
				slog.Duration("took", took), slog.String("code", c.errorCode),
				slog.String("remote", r.RemoteAddr))
		}()
		serveRecovering(rec, r, next)
		if rec.status == 0 {
			rec.status = http.StatusOK // the answer of net/http for a handler that wrote nothing
		}
		aborted = false
	})
}

// serveRecovering calls next and answers 500 if it panics. It does not recover from
// http.ErrAbortHandler, by which a handler closes the connection.
func serveRecovering(w http.ResponseWriter, r *http.Request, next http.Handler) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
		Fail(w, r, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
	}()
	next.ServeHTTP(w, r)
}

// inboundID returns the first valid id in the headers of a request, "" if there is none.
func inboundID(h http.Header, names []string) string {
	for _, n := range names {
		if id := h.Get(n); isValidID(id) {
			return id
		}
	}
	return ""
}

// isValidID reports whether an id is safe in a header and a log line.
func isValidID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		ok := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			c == '-' || c == '_' || c == '.' || c == ':' || c == '='
		if !ok {
			return false
		}
	}
	return true
}

// recorder records status and size of an answer. http.ResponseController reaches the
// real writer through Unwrap.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 { // 1xx may precede the answer
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// hasStarted reports whether an answer has begun. It unwraps writers until it finds the
// recorder.
func hasStarted(w http.ResponseWriter) bool {
	for {
		if rec, ok := w.(*recorder); ok {
			return rec.status != 0
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
}
