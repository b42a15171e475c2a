package router

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"atoll.dev/internal/proxyproto"
	"atoll.dev/sni"
)

// Fatal alerts of TLS (RFC 8446, 6; RFC 6066, 3), in a record that every
// version of TLS reads.
var (
	alertUnrecognizedName = []byte{21, 3, 1, 0, 2, 2, 112}
	alertInternalError    = []byte{21, 3, 1, 0, 2, 2, 80}
)

// keepAlive closes a connection within a minute when its peer does not answer.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// chunk is how many bytes the router copies before its metrics count them. A connection is counted in parts, because
// a watch may stay open for days.
const chunk = 1 << 20

// serve reads the server name of a client's connection, connects to the plane of that name, and copies until the
// connection ends. The connection has a place in Router.unnamed until its server name is known.
func (r *Router) serve(ctx context.Context, c *clientConn) outcome {
	client := c.conn
	if tcp, ok := client.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // without it, the kernel closes such a connection later
	}
	_ = client.SetDeadline(time.Now().Add(helloTimeout))
	if result := r.readProxyHeader(c); result != outcomeRouted {
		return result
	}
	want, err := readWish(client)
	if err != nil {
		if r.isEvicted(c) {
			return outcomeCrowded
		}
		return refuse(client, outcomeOfHello(err), alertUnrecognizedName)
	}
	route, result := r.beginUse(c, want.serverName)
	if result != outcomeRouted {
		return refuse(client, result, want.answerTo(result))
	}
	defer r.endUse(c, want.serverName)
	_ = client.SetDeadline(time.Time{})
	backend, result := r.connect(ctx, route, c.source)
	if backend == nil {
		return refuse(client, result, want.answerTo(result))
	}
	if !r.track(backend) {
		return outcomeStopped
	}
	defer r.untrack(backend)
	if !r.pass(want, client, backend) {
		return refuse(client, outcomeUnreachable, want.answerTo(outcomeUnreachable))
	}
	r.metrics.open.Inc()
	defer r.metrics.open.Dec()
	r.copyBothWays(client, backend)
	return outcomeRouted
}

// pass gives each side what it needs before bytes are copied: the plane the hello that was read, or the client of a
// CONNECT its answer.
func (r *Router) pass(want wish, client, backend net.Conn) (ok bool) {
	to, text := backend, want.hello
	if want.isConnect() {
		to, text = client, connected
	}
	_ = to.SetWriteDeadline(time.Now().Add(dialTimeout))
	if _, err := to.Write(text); err != nil {
		return false
	}
	_ = to.SetWriteDeadline(time.Time{})
	if !want.isConnect() {
		r.metrics.countBytes(toPlane, int64(len(text)))
	}
	return true
}

// readProxyHeader reads the PROXY header of a connection from a load balancer, and applies the limits
// of the client that the header names. The outcome is outcomeRouted when the connection may go on,
// also when it is from no load balancer.
func (r *Router) readProxyHeader(c *clientConn) outcome {
	if !c.isProxied {
		return outcomeRouted
	}
	client, err := proxyproto.Read(c.conn)
	switch {
	case r.isEvicted(c):
		return outcomeCrowded
	case errors.Is(err, proxyproto.ErrMalformed):
		return outcomeNoHeader
	case errors.Is(err, os.ErrDeadlineExceeded):
		return outcomeSlow
	case err != nil:
		return outcomeHungUp
	case !r.admitProxied(c, client.Addr().WithZone("")):
		return outcomeSource
	}
	return outcomeRouted
}

// outcomeOfHello maps an error of sni.Read.
func outcomeOfHello(err error) outcome {
	switch {
	case errors.Is(err, sni.ErrMalformed), errors.Is(err, errConnect):
		return outcomeGarbage
	case errors.Is(err, sni.ErrNoName):
		return outcomeNoName
	case errors.Is(err, os.ErrDeadlineExceeded):
		return outcomeSlow
	}
	return outcomeHungUp
}

// refuse sends a TLS alert, waits at most alertTimeout for the client to read it, and returns why. Without the wait the
// kernel would reset a connection that has unread bytes, and the client would not get the alert.
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

// connect connects to the backend of a route. It wakes a sleeping backend. It also
// wakes, once, a backend that does not answer: the table may be outdated.
func (r *Router) connect(ctx context.Context, route Route, source netip.Prefix) (net.Conn, outcome) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}
	if !route.Asleep && route.Backend != "" {
		if conn, err := dialer.DialContext(ctx, "tcp", route.Backend); err == nil {
			return conn, outcomeRouted
		}
	}
	backend, err := r.wake(ctx, route, source)
	switch {
	case errors.Is(err, errNameBudget), errors.Is(err, errSourceBudget):
		return nil, outcomeWakeBudget
	case err != nil:
		return nil, outcomeNotWoken
	}
	conn, err := dialer.DialContext(ctx, "tcp", backend)
	if err != nil {
		return nil, outcomeUnreachable
	}
	return conn, outcomeRouted
}

// copyBothWays copies until both sides have ended their streams, or one fails. When
// one side ends, it closes the other side's incoming stream and goes on with the other
// direction. After the plane's end it does so for Options.Linger only: a program may
// keep a connection in a pool for hours, and the connection would keep the plane awake.
func (r *Router) copyBothWays(client, backend net.Conn) {
	var back sync.WaitGroup
	back.Go(func() {
		r.copyOneWay(client, backend, toClient)
		_ = client.SetReadDeadline(time.Now().Add(r.o.Linger))
	})
	r.copyOneWay(backend, client, toPlane)
	back.Wait()
}

// copyOneWay copies src to dst. Between two TCP connections the kernel copies; the
// bytes do not pass through this process.
func (r *Router) copyOneWay(dst, src net.Conn, way direction) {
	for {
		n, err := io.CopyN(dst, src, chunk)
		r.metrics.countBytes(way, n)
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			if half, ok := dst.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
				return
			}
		}
		dst.Close() // a failed direction ends the whole connection
		src.Close()
		return
	}
}
