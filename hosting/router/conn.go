package router

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"atoll.dev/sni"
)

// Fatal alerts of TLS (RFC 8446, 6; RFC 6066, 3), in a record that every
// version of TLS reads.
var (
	alertUnrecognizedName = []byte{21, 3, 1, 0, 2, 2, 112}
	alertInternalError    = []byte{21, 3, 1, 0, 2, 2, 80}
)

// keepAlive finds out that a peer is gone, 30 s to a minute after it went.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// chunk is how much goes through before it is counted; a watch may stay open for days.
const chunk = 1 << 20

// serve carries one connection to its end. It holds a place among the unnamed
// until the server is known.
func (r *Router) serve(ctx context.Context, client net.Conn) outcome {
	named := sync.OnceFunc(func() { r.named(sourceOf(client)) })
	defer named()
	if tcp, ok := client.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // without it, it is found out later
	}
	_ = client.SetDeadline(time.Now().Add(helloTimeout))
	hello, err := sni.Read(client)
	if err != nil {
		return refuse(client, badHello(err), alertUnrecognizedName)
	}
	route, entered := r.enter(hello.ServerName)
	if entered != outcomeRouted {
		return refuse(client, entered, alertUnrecognizedName)
	}
	defer r.leave(hello.ServerName)
	named()
	_ = client.SetDeadline(time.Time{})
	backend, failed := r.reach(ctx, route)
	if backend == nil {
		return refuse(client, failed, alertInternalError)
	}
	if !r.own(backend) {
		return outcomeStopped
	}
	defer r.disown(backend)
	_ = backend.SetWriteDeadline(time.Now().Add(dialTimeout))
	if _, err := backend.Write(hello.Raw); err != nil {
		return refuse(client, outcomeUnreachable, alertInternalError)
	}
	_ = backend.SetWriteDeadline(time.Time{})
	r.metrics.carried(toPlane, int64(len(hello.Raw)))
	r.metrics.open.Inc()
	defer r.metrics.open.Dec()
	r.join(client, backend)
	return outcomeRouted
}

func badHello(err error) outcome {
	switch {
	case errors.Is(err, sni.ErrMalformed):
		return outcomeGarbage
	case errors.Is(err, sni.ErrNoName):
		return outcomeNoName
	case errors.Is(err, os.ErrDeadlineExceeded):
		return outcomeSlow
	}
	return outcomeHungUp
}

// refuse says goodbye and waits a moment for the client to hear it: closing
// with unread bytes would reset the connection and lose the alert.
func refuse(client net.Conn, why outcome, alert []byte) outcome {
	if why == outcomeHungUp {
		return why
	}
	_ = client.SetDeadline(time.Now().Add(alertTimeout))
	if _, err := client.Write(alert); err != nil {
		return why
	}
	if half, ok := client.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, client, sni.MaxHello)
	}
	return why
}

// reach connects to the backend of a route. One that sleeps is woken; so is one
// that does not answer, once, since the table may be old.
func (r *Router) reach(ctx context.Context, route Route) (net.Conn, outcome) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}
	if !route.Asleep && route.Backend != "" {
		if conn, err := dialer.DialContext(ctx, "tcp", route.Backend); err == nil {
			return conn, outcomeRouted
		}
	}
	backend, err := r.wake(ctx, route.ServerName)
	if err != nil {
		return nil, outcomeAsleep
	}
	conn, err := dialer.DialContext(ctx, "tcp", backend)
	if err != nil {
		return nil, outcomeUnreachable
	}
	return conn, outcomeRouted
}

// join carries bytes both ways until both sides have ended, or one breaks. The
// end of one direction is passed on, the other goes on; after the plane's for a
// while only: a program may keep a connection in a pool and not look at it for
// hours, and it would keep the plane awake.
func (r *Router) join(client, backend net.Conn) {
	var back sync.WaitGroup
	back.Go(func() {
		r.carry(client, backend, toClient)
		_ = client.SetReadDeadline(time.Now().Add(r.o.Linger))
	})
	r.carry(backend, client, toPlane)
	back.Wait()
}

// carry copies src to dst. Between two TCP connections the kernel does it,
// and no byte comes into this process.
func (r *Router) carry(dst, src net.Conn, way direction) {
	for {
		n, err := io.CopyN(dst, src, chunk)
		r.metrics.carried(way, n)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if half, ok := dst.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
				return
			}
			fallthrough
		default: // broken: neither side has anything to say to the other
			dst.Close()
			src.Close()
			return
		}
	}
}
