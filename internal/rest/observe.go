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

// Options say how a service answers. The zero value is useful.
type Options struct {
	Log *slog.Logger // default slog.Default()

	// ErrorBody shapes error answers. Default PlatformError.
	ErrorBody ErrorBody

	// ErrorType is the content type of error answers. Default application/json.
	ErrorType string

	// Classify maps errors of the service's tools to answers, for example a
	// database that is down to 503. It returns nil for an error it does not
	// know. It is asked only about errors that are not an *Error.
	Classify func(error) *Error

	// IDHeaders carry the operation id in every answer; the first that is
	// present in a request, and sane, is taken over. Default X-Operation-ID.
	IDHeaders []string

	// Metrics, when set, gets http_requests_total and
	// http_request_duration_seconds, by route, method and status.
	Metrics prometheus.Registerer

	// Observed, when set, is told of each request that was answered: the pattern
	// that matched ("" if none), and whether it was a watch, whose duration says
	// nothing.
	Observed func(method, route string, status int, took time.Duration, watch bool)

	// Trace, when set, begins a span for each request, in whose context it is
	// handled, and gets the route and the status at its end.
	Trace func(*http.Request) (ctx context.Context, end func(route string, status int))
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

// call is what Observe knows about one request.
type call struct {
	opts   *Options
	id     string
	route  string // the pattern that matched
	failed string // code of the error that was answered
	watch  bool   // its duration says nothing
}

type callKey struct{}

var defaults = Options{}.withDefaults()

// callOf returns the request's call, or a fresh one for a handler that runs
// without Observe, as in a test of the handler alone.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{opts: &defaults}
}

// OperationID is the id of the request that ctx belongs to: in its answer, in
// its log lines, and in whatever the service does on its behalf. It is empty
// outside Observe.
func OperationID(ctx context.Context) string { return callOf(ctx).id }

// Observe is the outermost handler of a service:
//
//	request -> Observe -> the service's middleware -> Mux -> Handler
//
// It gives the request an id, recovers panics into 500, writes the access log
// at level debug, counts, and holds the Options that Fail answers by.
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
				status = statusGone
			}
			took := time.Since(start)
			m.observe(c, r.Method, status, took)
			if o.Observed != nil {
				o.Observed(r.Method, c.route, status, took, c.watch)
			}
			end(c.route, status)
			// No query: a presigned one is a credential.
			o.Log.LogAttrs(r.Context(), slog.LevelDebug, "request",
				slog.String("operation_id", c.id), slog.String("method", r.Method),
				slog.String("path", r.URL.Path), slog.String("route", c.route),
				slog.Int("status", status), slog.Int64("bytes", rec.bytes),
				slog.Duration("took", took), slog.String("code", c.failed),
				slog.String("remote", r.RemoteAddr))
		}()
		recovered(rec, r, next)
		if rec.status == 0 {
			rec.status = http.StatusOK // net/http answers so for a handler that wrote nothing
		}
		aborted = false
	})
}

// recovered runs next and answers 500 when it panics. http.ErrAbortHandler
// passes: it is the way to cut a connection.
func recovered(w http.ResponseWriter, r *http.Request, next http.Handler) {
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

// inboundID returns the id that the request brings, if it is one that can
// stand in a log line.
func inboundID(h http.Header, names []string) string {
	for _, n := range names {
		if id := h.Get(n); saneID(id) {
			return id
		}
	}
	return ""
}

func saneID(s string) bool {
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

// recorder remembers what was answered. http.ResponseController reaches the
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

// started says whether an answer has begun, looking through wrappers.
func started(w http.ResponseWriter) bool {
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
