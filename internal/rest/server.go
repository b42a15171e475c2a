package rest

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Server runs one listener of a service.
type Server struct {
	Name    string       // for log lines and errors
	Handler http.Handler // usually made by Observe
	TLS     *tls.Config  // nil: plain, for loopback only
	Log     *slog.Logger // default slog.Default()

	// MaxHeaderBytes bounds a request's line and headers; default 64 KiB.
	MaxHeaderBytes int

	// ReadTimeout and WriteTimeout bound reading a request and writing an answer
	// that is no watch; default 60 s.
	ReadTimeout, WriteTimeout time.Duration

	// Limits bounds connections; the zero value has no bound.
	Limits ConnLimits

	// Drain is how long the server accepts connections and requests after the context of Run has ended. Answers then
	// move their clients to other connections, and watches go on. Default 0.
	Drain time.Duration

	// Failed, when closed, ends Drain: a part that the requests need has failed. nil: none can.
	Failed <-chan struct{}

	// Grace is how long running requests may take after Drain; default 5 s. Watches end when Grace begins.
	Grace time.Duration
}

// Limits of every listener. Handlers bound the size of bodies; a watch removes the
// deadlines of its connection.
const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 60 * time.Second
	writeTimeout      = 60 * time.Second
	idleTimeout       = 120 * time.Second
	maxHeaderBytes    = 64 << 10
)

// Run serves on l until ctx ends and for Drain longer unless Failed is closed, then closes l, waits up to Grace for
// running requests, and returns nil.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	log := s.Log
	if log == nil {
		log = slog.Default()
	}
	grace := s.Grace
	if grace <= 0 {
		grace = 5 * time.Second
	}
	// When the drain ends, running requests may take Grace longer, and watches end.
	drain := newDrain(ctx)
	defer drain.end()
	base := context.WithValue(context.WithoutCancel(ctx), stopKey{}, drain.over)
	base, cancel := context.WithCancel(base)
	defer cancel()
	hs := &http.Server{
		Handler:           drain.handler(s.Handler),
		TLSConfig:         s.TLS,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       cmp.Or(s.ReadTimeout, readTimeout),
		WriteTimeout:      cmp.Or(s.WriteTimeout, writeTimeout),
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    cmp.Or(s.MaxHeaderBytes, maxHeaderBytes),
		BaseContext:       func(net.Listener) context.Context { return base },
		// Failed handshakes are mistakes of clients, and can be many.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.limit(hs, &l)
	served := make(chan error, 1)
	go func() {
		if s.TLS != nil {
			served <- hs.ServeTLS(l, "", "")
			return
		}
		served <- hs.Serve(l)
	}()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		err = drain.wait(s.Drain, served, s.Failed)
	}
	if err != nil {
		return fmt.Errorf("serving %s on %s: %w", s.Name, l.Addr(), err)
	}
	drain.end()
	graceful, done := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer done()
	err = hs.Shutdown(graceful)
	if errors.Is(err, context.DeadlineExceeded) {
		log.LogAttrs(ctx, slog.LevelWarn, "requests cut at shutdown", slog.String("server", s.Name),
			slog.Duration("grace", grace))
		err = nil
		cancel()
		_ = hs.Close()
	}
	<-served
	if err != nil {
		return fmt.Errorf("stopping %s: %w", s.Name, err)
	}
	return nil
}

// limit applies the limits of connections to the server and its listener.
func (s *Server) limit(hs *http.Server, l *net.Listener) {
	hs.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: cmp.Or(s.Limits.Streams, defaultStreams)}
	if s.Limits.Total <= 0 && s.Limits.PerSource <= 0 {
		return
	}
	hs.HTTP2.MaxReceiveBufferPerConnection, hs.HTTP2.MaxReceiveBufferPerStream = connBuffer, streamBuffer
	limiter := newConnLimiter(s.Limits)
	hs.ConnState, hs.ConnContext = limiter.observe, limiter.addConnection
	*l = limiter.listener(*l)
}

type stopKey struct{}

// Stopping returns a context that ends when the server of the request that ctx
// belongs to closes its listener. Handlers of long requests end with it.
func Stopping(ctx context.Context) context.Context {
	if stop, ok := ctx.Value(stopKey{}).(context.Context); ok {
		return stop
	}
	return context.Background()
}
