package rest

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// ConnLimits bounds the connections of a Server and what each may hold in memory. The zero value
// has no bound of its own; the deadlines of the Server apply in any case.
type ConnLimits struct {
	Total     int // open connections
	PerSource int // open connections of one source; see SourceOf

	Streams int // open HTTP/2 streams of a connection; default 250

	Metrics prometheus.Registerer // when set, gets the number of open, evicted and refused connections
}

// With Total or PerSource, the buffers of an HTTP/2 connection for the bodies that no handler has
// read are bounded, too; otherwise they are those of net/http, 1 MiB each.
const (
	defaultStreams = 250
	connBuffer     = 256 << 10
	streamBuffer   = 128 << 10
)

// SourceOf returns the source of a connection, by which connections and requests are limited: an
// IPv4 address, or the IPv6 network of one host (/64). All connections without an IP address have
// one source. remoteAddr is as in http.Request.
func SourceOf(remoteAddr string) netip.Prefix {
	parsed, err := netip.ParseAddrPort(remoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr := parsed.Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	source, _ := addr.Prefix(bits)
	return source
}

// ErrEvicted is the error of a quiet connection that the limiter closed to make room for a new one.
var ErrEvicted = errors.New("the connection gave its place to a new one")

// connLimiter counts the connections of one listener. A sender is proven when the service has
// authenticated it. A connection is quiet while it has no request of a proven sender: its TLS
// handshake or its headers are not complete, it is idle between two requests, or no handler has
// called KeepConnection for its requests yet. When a limit is reached, the limiter closes the
// connection that has been quiet longest and admits the new one: at the limit of a source it takes a
// connection of that source, at the limit of all one of the source with the most quiet connections.
// So neither half-open connections nor unproven senders that withhold a body block other clients.
// When there is no quiet connection, the limiter closes the new one.
type connLimiter struct {
	limits ConnLimits

	open             prometheus.Gauge
	evicted, refused prometheus.Counter

	mu      sync.Mutex
	total   int
	sources map[netip.Prefix]*sourceConns
}

// sourceConns are the connections of one source.
type sourceConns struct {
	open  int
	quiet list.List // of *limitedConn, the longest quiet first
}

func newConnLimiter(limits ConnLimits) *connLimiter {
	closed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "http_connections_closed_total",
		Help: "Connections that the server closed because of a limit: refused new ones, and evicted quiet ones."},
		[]string{"reason"})
	l := &connLimiter{
		limits: limits, sources: map[netip.Prefix]*sourceConns{},
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "http_connections_open",
			Help: "Open connections of the listener."}),
		evicted: closed.WithLabelValues("evicted"), refused: closed.WithLabelValues("refused"),
	}
	if limits.Metrics != nil {
		limits.Metrics.MustRegister(l.open, closed)
	}
	return l
}

// listener returns a listener whose connections are limited.
func (l *connLimiter) listener(inner net.Listener) net.Listener { return &limitedListener{inner, l} }

type limitedListener struct {
	net.Listener
	limiter *connLimiter
}

// Accept returns the next connection that the limits admit.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.limiter.admit(conn); c != nil {
			return c, nil
		}
	}
}

// limitedConn is a counted connection. Closing it frees its place.
type limitedConn struct {
	net.Conn
	limiter *connLimiter
	source  netip.Prefix
	quiet   *list.Element // nil while a request of a proven sender runs, and after the end
	active  bool          // it has a request
	closed  bool          // its place is free
}

func (c *limitedConn) Close() error {
	c.limiter.remove(c)
	return c.Conn.Close()
}

// admit counts a new connection, or closes it and returns nil.
func (l *connLimiter) admit(conn net.Conn) net.Conn {
	source := SourceOf(conn.RemoteAddr().String())
	l.mu.Lock()
	of := l.sources[source]
	if of == nil {
		of = &sourceConns{}
		l.sources[source] = of
	}
	var evicted []*limitedConn // nil where there was no quiet connection
	if l.limits.PerSource > 0 && of.open >= l.limits.PerSource {
		evicted = append(evicted, l.takeQuiet(of))
	}
	if l.limits.Total > 0 && l.total >= l.limits.Total {
		evicted = append(evicted, l.takeQuiet(l.mostQuiet()))
	}
	var admitted *limitedConn
	if (l.limits.PerSource <= 0 || of.open < l.limits.PerSource) && (l.limits.Total <= 0 || l.total < l.limits.Total) {
		admitted = &limitedConn{Conn: conn, limiter: l, source: source}
		admitted.quiet = of.quiet.PushBack(admitted)
		of.open++
		l.total++
		l.sources[source] = of // takeQuiet may have removed a source without connections
	} else if of.open == 0 {
		delete(l.sources, source)
	}
	l.open.Set(float64(l.total))
	l.mu.Unlock()
	for _, c := range evicted {
		if c != nil {
			l.evicted.Inc()
			_ = c.Conn.Close()
		}
	}
	if admitted == nil {
		l.refused.Inc()
		_ = conn.Close()
		return nil
	}
	return admitted
}

// mostQuiet returns the source with the most quiet connections, nil if there is none.
func (l *connLimiter) mostQuiet() *sourceConns {
	var most *sourceConns
	for _, of := range l.sources {
		if of.quiet.Len() > 0 && (most == nil || of.quiet.Len() > most.quiet.Len()) {
			most = of
		}
	}
	return most
}

// takeQuiet frees the place of the connection of a source that has been quiet longest, and returns
// the connection; nil if there is none. The caller holds the lock.
func (l *connLimiter) takeQuiet(of *sourceConns) *limitedConn {
	if of == nil || of.quiet.Len() == 0 {
		return nil
	}
	c := of.quiet.Front().Value.(*limitedConn)
	l.release(c)
	return c
}

// release frees the place of a connection, once. The caller holds the lock.
func (l *connLimiter) release(c *limitedConn) {
	if c.closed {
		return
	}
	c.closed = true
	of := l.sources[c.source]
	if c.quiet != nil {
		of.quiet.Remove(c.quiet)
		c.quiet = nil
	}
	l.total--
	if of.open--; of.open == 0 {
		delete(l.sources, c.source)
	}
}

// remove releases the place of a connection that has been closed.
func (l *connLimiter) remove(c *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(c)
	l.open.Set(float64(l.total))
}

// limitedOf returns the counted connection below a connection of the server, nil if there is none.
func limitedOf(conn net.Conn) *limitedConn {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	c, _ := conn.(*limitedConn)
	return c
}

// observe is the ConnState of the server: it keeps the lists of quiet connections.
func (l *connLimiter) observe(conn net.Conn, state http.ConnState) {
	c := limitedOf(conn)
	if c == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return
	}
	switch quiet := &l.sources[c.source].quiet; state {
	case http.StateActive:
		c.active = true
		if c.quiet != nil {
			quiet.MoveToBack(c.quiet) // its sender gets the longest time to prove its identity
		}
	case http.StateHijacked:
		if c.quiet != nil {
			quiet.Remove(c.quiet)
			c.quiet = nil
		}
	case http.StateIdle:
		c.active = false
		if c.quiet == nil {
			c.quiet = quiet.PushBack(c)
		}
	}
}

type connKey struct{}

// addConnection is the ConnContext of the server: it returns ctx with the connection, which KeepConnection needs.
func (l *connLimiter) addConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, limitedOf(conn))
}

// KeepConnection keeps the connection of a request, whose context ctx is, until the request is
// answered: the limiter does not evict it for a new one. A handler calls it as soon as it has
// authenticated the sender. The error is ErrEvicted when the connection was evicted before; then
// nobody can receive the answer, and the handler must not execute the request. A server without
// limits keeps all its connections.
func KeepConnection(ctx context.Context) error {
	c, _ := ctx.Value(connKey{}).(*limitedConn)
	if c == nil {
		return nil
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.closed {
		return ErrEvicted
	}
	if c.active && c.quiet != nil { // HTTP/2 may have ended the request while its handler still runs
		c.limiter.sources[c.source].quiet.Remove(c.quiet)
		c.quiet = nil
	}
	return nil
}
