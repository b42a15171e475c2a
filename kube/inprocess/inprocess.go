// Package inprocess passes the requests of a plane's own parts to its API server without a connection.
//
// Most requests that an API server gets while a plane starts, and all that it gets while the plane is idle, are from
// the same process: its own informers, the controller manager, the scheduler. Over a connection each of them is
// encrypted, cut into frames, written to a socket and read by goroutines of both sides. Here the client's goroutine
// hands the request to a goroutine that runs the server's handler, and reads the response from a buffer.
//
// The handler is the one that the API server also serves to the network: authentication, authorization, audit,
// priority and fairness and admission are the same. Only who the client is comes another way: [Server.Transport] puts
// the user into the context of the request, and [Authenticate] reads it there. Nobody outside of the process can do
// that.
package inprocess

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"runtime/debug"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// address is the remote address of each request, as audit records have it.
const address = "127.0.0.1:0"

// Server passes requests to a handler. The zero value is not usable: see [New].
type Server struct {
	serving chan struct{} // closed when handler is set
	handler http.Handler
}

// New returns a server without a handler. Requests wait for one.
func New() *Server { return &Server{serving: make(chan struct{})} }

// Serve lets the server pass requests to handler. It must be called once.
func (s *Server) Serve(handler http.Handler) {
	s.handler = handler
	close(s.serving)
}

// Config returns the configuration of a client that is u. Requests name host, which has no other effect.
//
// The transport is set as a wrapper, which ignores the transport that it wraps: upstream adds a certificate authority
// to the configuration for webhooks that are reached at the API server, and refuses one beside a transport.
func (s *Server) Config(host string, u user.Info) *rest.Config {
	c := &rest.Config{Host: host, QPS: -1, DisableCompression: true}
	c.Wrap(func(http.RoundTripper) http.RoundTripper { return s.Transport(u) })
	return c
}

// Transport returns a transport for the requests of a user.
func (s *Server) Transport(u user.Info) http.RoundTripper {
	// A reverse proxy reports a response that was cut off only to a handler whose context has a server. Otherwise the
	// client would take the part for the whole.
	ctx := context.WithValue(context.Background(), http.ServerContextKey, &http.Server{})
	return &transport{s, context.WithValue(ctx, userKey{}, u)}
}

type transport struct {
	server *Server
	values context.Context // what the contexts of all requests have
}

// userKey is the key of the user in the context of a request.
type userKey struct{}

// Authenticate is an [authenticator.RequestFunc] that authenticates the requests of [Server.Transport] as its user. It
// has no opinion about others.
func Authenticate(r *http.Request) (*authenticator.Response, bool, error) {
	u, ok := r.Context().Value(userKey{}).(user.Info)
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: u}, true, nil
}

// connection is what a handler may learn about the connection of a request: that nobody else can read it.
var connection = &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true}

// RoundTrip implements [http.RoundTripper]. It returns when the handler has flushed the first part of its response, or
// has returned.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-t.server.serving:
	case <-r.Context().Done():
		closeBody(r)
		return nil, r.Context().Err()
	}
	// The handler must not see the values of the client's context: the client may itself work for a request, whose user
	// and audit record are not those of this one.
	ctx, cancel := context.WithCancel(t.values)
	w := newResponse(r, cancel)
	go w.run(t.server.handler, incoming(ctx, r))
	return w.await()
}

// incoming returns the request that the handler gets for r.
func incoming(ctx context.Context, r *http.Request) *http.Request {
	in := r.Clone(ctx)
	if in.Header == nil {
		in.Header = http.Header{}
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if in.Host == "" {
		in.Host = in.URL.Host
	}
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	in.RequestURI, in.RemoteAddr, in.TLS = in.URL.RequestURI(), address, connection
	in.GetBody, in.Response = nil, nil
	return in
}

// run runs the handler. What panics here would end the process; the server of a network recovers it.
func (w *response) run(handler http.Handler, r *http.Request) {
	defer closeBody(r)
	defer func() {
		problem := recover()
		if problem == nil {
			w.end(io.EOF)
			return
		}
		if problem != http.ErrAbortHandler {
			klog.ErrorS(nil, "A handler panicked", "method", r.Method, "path", r.URL.Path, "panic", problem,
				"stack", string(debug.Stack()))
		}
		w.end(io.ErrUnexpectedEOF)
	}()
	handler.ServeHTTP(w, r)
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}
