package router

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// Limits are the limits of a Router on strangers and customers. Zero is the default. A source is
// an IPv4 address, or an IPv6 network of one host (/64).
type Limits struct {
	Unnamed          int // connections that have not named a server yet; default 1024
	UnnamedPerSource int // of these, from one source; default half of them
	Connections      int // to all planes; default 16384, or fewer if the limit of open files is lower
	PerName          int // of these, of one server name; default 2048
	PerSource        int // of these, from one source; default half of PerName
	Handshakes       int // new connections of one source in a second; 20 times as many at once; default 100
	WakesPerName     int // of a sleeping plane in an hour, and at once; default 60
	WakesPerSource   int // of sleeping planes, by one source in an hour, and at once; default 240

	// Proxies are the addresses of load balancers. Each connection from there begins with a header
	// of the PROXY protocol; a connection from elsewhere that begins with one is refused.
	Proxies []netip.Prefix
}

// The last eighth (reserveDivisor) of Limits.Connections is for server names that have fewer than fewConnections: so a
// few names cannot use up all connections.
const (
	reserveDivisor = 8
	fewConnections = 16
)

// A source that was idle may begin handshakeSeconds times Limits.Handshakes connections at once.
const handshakeSeconds = 20

// descriptorsPerConn is how many file descriptors a connection takes: two sockets, and a pipe in each
// direction through which the kernel copies.
const descriptorsPerConn = 6

func (l Limits) withDefaults() Limits {
	l.Unnamed = cmp.Or(l.Unnamed, 1024)
	l.UnnamedPerSource = cmp.Or(l.UnnamedPerSource, max(1, l.Unnamed/2))
	l.PerName = cmp.Or(l.PerName, 2048)
	l.PerSource = cmp.Or(l.PerSource, max(1, l.PerName/2))
	l.Connections = cmp.Or(l.Connections, min(16384, connectionsForFiles(openFiles(), l.Unnamed)))
	l.Handshakes = cmp.Or(l.Handshakes, 100)
	l.WakesPerName = cmp.Or(l.WakesPerName, 60)
	l.WakesPerSource = cmp.Or(l.WakesPerSource, 240)
	return l
}

// connectionsForFiles returns how many connections a limit of open files allows beside the unnamed
// connections and the router's own files.
func connectionsForFiles(files, unnamed int) int {
	const own = 128
	return max(64, (files-unnamed-own)/descriptorsPerConn)
}

// openFiles returns this process's limit of open files.
func openFiles() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024
	}
	return int(min(limit.Cur, 1<<30))
}

// isProxy reports whether addr is the address of a load balancer.
func (l Limits) isProxy(addr netip.Addr) bool {
	return slices.ContainsFunc(l.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// addressOf returns the address of a connection's peer, the zero Addr if it has none.
func addressOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// sourceOf returns the source of an address: an IPv4 address, or the IPv6 network of one host. All
// connections without an address are one source.
func sourceOf(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	source, _ := addr.Prefix(bits)
	return source
}

// admit gives a new connection a place among the unnamed ones, and closes another connection if no place is free. It
// returns false when the source of the connection begins too many connections. For a connection from a load balancer
// it does not check the source, which is not known yet: see admitProxied.
func (r *Router) admit(c *clientConn) bool {
	r.mu.Lock()
	if !c.isProxied && !r.handshakes.takeToken(c.source, r.o.now()) {
		r.mu.Unlock()
		return false
	}
	evicted := r.unnamed.add(c)
	r.mu.Unlock()
	if evicted != nil {
		evicted.conn.Close()
	}
	return true
}

// admitProxied moves a connection from a load balancer to the source that its PROXY header names, and checks that
// source as admit does. A header without a client (a health check) leaves the load balancer as the source. It returns
// false as admit does, and when the connection was evicted.
func (r *Router) admitProxied(c *clientConn, client netip.Addr) bool {
	r.mu.Lock()
	r.unnamed.remove(c)
	c.isProxied = false
	if client.IsValid() {
		c.source = sourceOf(client)
	}
	isEvicted := c.evicted
	r.mu.Unlock()
	return !isEvicted && r.admit(c)
}

// releasePlace frees a connection's place, if it still has one.
func (r *Router) releasePlace(c *clientConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unnamed.remove(c)
}

// isEvicted reports whether another connection has got this connection's place.
func (r *Router) isEvicted(c *clientConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.evicted
}

// beginUse counts a connection to the plane of a name, and frees its place among the unnamed ones.
// The outcome is outcomeRouted when the name has a route and the limits have room; else nothing is
// counted.
func (r *Router) beginUse(c *clientConn, name string) (Route, outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	route, ok := r.routes[name]
	u := r.names[name]
	switch {
	case c.evicted:
		return Route{}, outcomeCrowded
	case !ok:
		return Route{}, outcomeUnknown
	case u.open >= r.limits.PerName:
		return Route{}, outcomeLimited
	case r.bySource[c.source] >= r.limits.PerSource:
		return Route{}, outcomeSource
	case r.open >= r.limits.Connections,
		r.open >= r.limits.Connections-r.limits.Connections/reserveDivisor && u.open >= fewConnections:
		return Route{}, outcomeFull
	}
	r.unnamed.remove(c)
	r.bySource[c.source]++
	r.open++
	u.open++
	r.names[name] = u
	r.requestReport()
	return route, outcomeRouted
}

// endUse ends what beginUse began.
func (r *Router) endUse(c *clientConn, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	if r.bySource[c.source]--; r.bySource[c.source] <= 0 {
		delete(r.bySource, c.source)
	}
	u := r.names[name]
	u.open--
	u.last = time.Now()
	r.names[name] = u
	if _, known := r.routes[name]; !known && u.open == 0 {
		delete(r.names, name)
	}
	r.requestReport()
}

// wakeState has the recent wakes of a server name.
type wakeState struct {
	budget bucket
	logged time.Time // of the last line about a failed wake
}

// takeFromWakeBudgets takes a wake from the budgets of a source and of a name. The error is
// errSourceBudget or errNameBudget when one of them is used up; then it takes nothing: a name whose
// budget is used up costs its clients no wakes of other names.
func (r *Router) takeFromWakeBudgets(source netip.Prefix, name string) error {
	now := r.o.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	hourly := float64(r.limits.WakesPerName)
	ofName := rate{perSecond: hourly / time.Hour.Seconds(), burst: hourly}
	budget := &r.wakeStateOf(name).budget
	if !r.wakesBySource.bucketOf(source).refill(r.wakesBySource.rate, now) {
		return errSourceBudget
	}
	if !budget.takeToken(ofName, now) {
		return errNameBudget
	}
	r.wakesBySource.takeToken(source, now)
	return nil
}

// wakeStateOf returns the wakes of a name. The caller holds the lock. useTable forgets the names
// without a route.
func (r *Router) wakeStateOf(name string) *wakeState {
	state := r.wakeStates[name]
	if state == nil {
		state = &wakeState{}
		r.wakeStates[name] = state
	}
	return state
}

// mayLogWake reports whether a failed wake of a name gets a line: one in a minute, because
// strangers can cause them.
func (r *Router) mayLogWake(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	state, now := r.wakeStateOf(name), time.Now()
	if now.Sub(state.logged) < time.Minute {
		return false
	}
	state.logged = now
	return true
}
