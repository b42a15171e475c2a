// Package router is the only public port of a management cluster: it reads the server
// name of a TLS connection and connects the client, still encrypted, with the plane of
// that name. It terminates no TLS and has no key.
//
// A Router is a process of its own (`atoll router`). Hosting serves a Control
// on a Unix socket. Over it the router follows the routes, requests that sleeping
// planes are woken, and reports which names have connections. Each of the two can be
// killed at any moment: the router keeps the last routes on disk and serves without
// hosting; without a router, hosting counts no connection.
//
// It is part of the service hosting, which imports it for Control and Route;
// cli runs the Router.
package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

const (
	// helloTimeout is how long a client may take to name a server.
	helloTimeout = 5 * time.Second
	// dialTimeout bounds a connection to a backend, which is on this machine.
	dialTimeout = 2 * time.Second
	// alertTimeout bounds the alert to a refused client.
	alertTimeout = time.Second
	// heartbeat is the longest pause between two lines that a side of the control socket sends.
	heartbeat = 5 * time.Second
	// reportPace is the shortest time between two reports of activity.
	reportPace = 100 * time.Millisecond
)

// Options are the options of a Router.
type Options struct {
	Control string // path of hosting's socket
	Dir     string // existing directory for the file of the routes

	Limits    Limits
	WakeLimit time.Duration // how long a connection is held for a plane that wakes; default 30 s
	Linger    time.Duration // how long a client may keep a connection that its plane has ended; default 30 s

	Log     *slog.Logger          // default slog.Default()
	Metrics prometheus.Registerer // nil: none

	now func() time.Time // for the budgets; default time.Now
}

// Router connects clients with planes. Its mutex guards the table and the counts, and
// is not held during I/O.
type Router struct {
	o         Options
	limits    Limits // with defaults
	log       *slog.Logger
	metrics   *metrics
	client    *http.Client // of the control socket
	wakes     singleflight.Group
	reportDue chan struct{} // holds one after a change of connections or of the table

	mu       sync.Mutex
	revision int64
	routes   map[string]Route
	names    map[string]use
	unnamed  *unnamedConns
	open     int                   // connections that beginUse counts
	bySource map[netip.Prefix]int  // of these
	conns    map[net.Conn]struct{} // open ones, of both sides

	handshakes    *sourceBuckets
	wakesBySource *sourceBuckets
	wakeStates    map[string]*wakeState

	stopped bool
	wg      sync.WaitGroup // of connections
}

// New returns a Router with the routes that an earlier router has stored in o.Dir. It
// logs a file that cannot be read: hosting sends the routes again.
func New(o Options) *Router {
	limits := o.Limits.withDefaults()
	o.WakeLimit = cmp.Or(o.WakeLimit, 30*time.Second)
	o.Linger = cmp.Or(o.Linger, 30*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.now == nil {
		o.now = time.Now
	}
	r := &Router{
		o: o, limits: limits, log: o.Log, metrics: newMetrics(o.Metrics),
		client: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialControl(ctx, o.Control)
			},
			DisableKeepAlives: true, // each stream and request connects to the present hosting
		}},
		reportDue:  make(chan struct{}, 1),
		names:      map[string]use{},
		unnamed:    newUnnamedConns(limits.Unnamed, limits.UnnamedPerSource),
		bySource:   map[netip.Prefix]int{},
		conns:      map[net.Conn]struct{}{},
		wakeStates: map[string]*wakeState{},
		handshakes: newSourceBuckets(rate{perSecond: float64(limits.Handshakes),
			burst: handshakeSeconds * float64(limits.Handshakes)}),
		wakesBySource: newSourceBuckets(rate{perSecond: float64(limits.WakesPerSource) / time.Hour.Seconds(),
			burst: float64(limits.WakesPerSource)}),
	}
	t, err := readTable(r.tablePath())
	if err != nil {
		r.log.Warn("cannot read the stored routes; hosting sends them again", slog.Any("error", err))
	}
	r.useTable(t)
	return r
}

func (r *Router) tablePath() string { return filepath.Join(r.o.Dir, "routes.json") }

// Run serves on l until ctx ends, and then closes all connections and l.
func (r *Router) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var control sync.WaitGroup
	control.Go(func() { r.retryStream(ctx, "routes", r.followRoutes) })
	control.Go(func() { r.retryStream(ctx, "activity", r.reportActivity) })
	defer control.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	err := r.accept(ctx, l)
	l.Close()
	r.closeAll()
	r.wg.Wait()
	return err
}

// accept starts a goroutine for each connection. When the process has no file
// descriptor left, it waits; the connections stay in the kernel's queue.
func (r *Router) accept(ctx context.Context, l net.Listener) error {
	const firstPause, longestPause = 5 * time.Millisecond, time.Second
	pause := firstPause
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = firstPause
			r.startServing(ctx, conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("routing on %s: %w", l.Addr(), err)
		default:
			r.log.Warn("connection not accepted", slog.Any("error", err), slog.Duration("pause", pause))
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, longestPause)
		}
	}
}

// startServing starts a goroutine that serves a connection. It closes the connection when its source begins too many.
func (r *Router) startServing(ctx context.Context, conn net.Conn) {
	addr := addressOf(conn)
	c := &clientConn{conn: conn, source: sourceOf(addr), isProxied: r.limits.isProxy(addr)}
	if !r.admit(c) {
		r.metrics.countConnection(outcomeSource)
		conn.Close()
		return
	}
	r.wg.Go(func() {
		defer r.releasePlace(c)
		outcome := outcomeStopped
		if r.track(conn) {
			outcome = r.serve(ctx, c)
			r.untrack(conn)
		}
		r.metrics.countConnection(outcome)
	})
}

// track records an open connection, which Run closes at its end. After that end it
// closes the connection itself and returns false.
func (r *Router) track(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		conn.Close()
		return false
	}
	r.conns[conn] = struct{}{}
	return true
}

func (r *Router) untrack(conn net.Conn) {
	conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

func (r *Router) closeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	for conn := range r.conns {
		conn.Close()
	}
}

// useTable replaces the table by t. Open connections stay.
func (r *Router) useTable(t table) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision, r.routes = t.Revision, make(map[string]Route, len(t.Routes))
	for _, route := range t.Routes {
		r.routes[route.ServerName] = route
	}
	maps.DeleteFunc(r.names, func(name string, u use) bool {
		_, known := r.routes[name]
		return !known && u.open == 0
	})
	maps.DeleteFunc(r.wakeStates, func(name string, _ *wakeState) bool {
		_, known := r.routes[name]
		return !known
	})
	r.metrics.routes.Set(float64(len(r.routes)))
	r.requestReport()
}

// requestReport requests a report of reportActivity.
func (r *Router) requestReport() {
	select {
	case r.reportDue <- struct{}{}:
	default:
	}
}
