package trace

import (
	"context"
	"fmt"
	"net/http"
)

// StartRequest begins a server's span for a request, below the span that its header
// traceparent names. The caller must call end with the status and the pattern of the
// route that answered; the method and the pattern become the span's name.
func (t *Tracer) StartRequest(r *http.Request) (ctx context.Context, end func(route string, status int)) {
	if t == nil {
		return r.Context(), noEnd
	}
	ctx, span := t.Start(WithParent(r.Context(), r.Header.Get(traceparentHeader)), r.Method, Server,
		String("http.request.method", r.Method), String("url.path", r.URL.Path))
	return ctx, func(route string, status int) {
		if route != "" {
			span.span.SetName(route)
			span.Set(String("http.route", route))
		}
		span.Set(Int("http.response.status_code", int64(status)))
		var err error
		if status >= http.StatusInternalServerError {
			err = fmt.Errorf("status %d", status)
		}
		span.End(err)
	}
}

func noEnd(string, int) {}

// Transport makes the requests that go through it spans of a client, and
// sends the trace's context along. next is http.DefaultTransport if it is nil.
// Without a tracer (nil) it returns next.
func (t *Tracer) Transport(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	if t == nil {
		return next
	}
	return transport{t, next}
}

type transport struct {
	tracer *Tracer
	next   http.RoundTripper
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, span := t.tracer.Start(r.Context(), r.Method, Client,
		String("http.request.method", r.Method), String("server.address", r.URL.Host), String("url.path", r.URL.Path))
	r = r.Clone(ctx)
	r.Header.Set(traceparentHeader, Parent(ctx))
	res, err := t.next.RoundTrip(r)
	if err == nil {
		span.Set(Int("http.response.status_code", int64(res.StatusCode)))
	}
	span.End(err)
	return res, err
}

// CloseIdleConnections closes those of the next transport. http.Client calls it.
func (t transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
