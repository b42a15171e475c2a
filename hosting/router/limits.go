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

// The last eighth of all connections is for names with few connections: so no small number of names
// takes all.
const (
	reservePart = 8
	fewOfName   = 16
)

// handshakeSeconds is for how many seconds of its rate a source may begin connections at once.
const handshakeSeconds = 20

// descriptors is how many file descriptors a connection takes: two sockets, and a pipe in each
// direction through which the kernel copies.
const descriptors = 6

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
	return max(64, (files-unnamed-own)/descriptors)
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

// admit gives a new connection a place among the unnamed ones. It returns false when the source of
// the connection begins too many connections. Of a connection from a load balancer, admit checks
// only whether there is a place: see admitProxied.
func (r *Router) admit(p *place) bool {
	r.mu.Lock()
	if !p.isProxied && !r.handshakes.take(p.source, r.o.now()) {
		r.mu.Unlock()
		return false
	}
	evicted := r.unnamed.add(p)
	r.mu.Unlock()
	if evicted != nil {
		evicted.conn.Close()
	}
	return true
}

// admitProxied moves a connection from a load balancer to the source that its PROXY header names.
// The load balancer itself is the source of a connection without a client. The result is as that
// of admit.
func (r *Router) admitProxied(p *place, client netip.Addr) bool {
	r.mu.Lock()
	r.unnamed.remove(p)
	p.isProxied = false
	if client.IsValid() {
		p.source = sourceOf(client)
	}
	isEvicted := p.evicted
	r.mu.Unlock()
	return !isEvicted && r.admit(p)
}

// releasePlace frees a connection's place, if it still has one.
func (r *Router) releasePlace(p *place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unnamed.remove(p)
}

// isEvicted reports whether a connection has given its place up to another one.
func (r *Router) isEvicted(p *place) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.evicted
}

// beginUse counts a connection to the plane of a name, and frees its place among the unnamed ones.
// The outcome is outcomeRouted when the name has a route and the limits have room; else nothing is
// counted.
func (r *Router) beginUse(p *place, name string) (Route, outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	route, ok := r.routes[name]
	u := r.names[name]
	switch {
	case p.evicted:
		return Route{}, outcomeCrowded
	case !ok:
		return Route{}, outcomeUnknown
	case u.open >= r.limits.PerName:
		return Route{}, outcomeLimited
	case r.bySource[p.source] >= r.limits.PerSource:
		return Route{}, outcomeSource
	case r.open >= r.limits.Connections,
		r.open >= r.limits.Connections-r.limits.Connections/reservePart && u.open >= fewOfName:
		return Route{}, outcomeFull
	}
	r.unnamed.remove(p)
	r.bySource[p.source]++
	r.open++
	u.open++
	r.names[name] = u
	r.requestReport()
	return route, outcomeRouted
}

// endUse ends what beginUse began.
func (r *Router) endUse(p *place, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	if r.bySource[p.source]--; r.bySource[p.source] <= 0 {
		delete(r.bySource, p.source)
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

// takeWake takes a wake from the budgets of a source and of a name. The error is
// errSourceBudget or errNameBudget when one of them is used up; then it takes nothing: a name whose
// budget is used up costs its clients no wakes of other names.
func (r *Router) takeWake(source netip.Prefix, name string) error {
	now := r.o.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	hourly := float64(r.limits.WakesPerName)
	ofName := rate{perSecond: hourly / time.Hour.Seconds(), burst: hourly}
	budget := &r.wakeStateOf(name).budget
	if !r.wakesBySource.of(source).has(r.wakesBySource.rate, now) {
		return errSourceBudget
	}
	if !budget.take(ofName, now) {
		return errNameBudget
	}
	r.wakesBySource.take(source, now)
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
