package bus

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Limits of unidentified connections, whose client has no client id yet: each costs
// a file descriptor, and any client can open them. All agents of a region may connect
// at once from one address; an agent that is refused retries within two seconds.
const (
	maxUnidentified         = 1024
	maxUnidentifiedOfSource = 256
	// identifyTimeout bounds the time from the accept to CONNECT.
	identifyTimeout = 5 * time.Second
)

// gate limits the unidentified connections, in total and by source: an IPv4 address,
// or an IPv6 network of 64 bits.
type gate struct {
	total, ofSource int // limits

	mu       sync.Mutex
	open     int
	bySource map[netip.Addr]int
}

func newGate() *gate {
	return &gate{total: maxUnidentified, ofSource: maxUnidentifiedOfSource, bySource: map[netip.Addr]int{}}
}

// enter counts a new connection. It returns nil when a limit is reached. Otherwise
// the caller calls leave when the client has a client id, or when the connection
// ends; a second call does nothing.
func (g *gate) enter(remote net.Addr) (leave func()) {
	source := sourceOf(remote)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open >= g.total || g.bySource[source] >= g.ofSource {
		return nil
	}
	g.open++
	g.bySource[source]++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open--
		if g.bySource[source]--; g.bySource[source] == 0 {
			delete(g.bySource, source)
		}
	})
}

// sourceOf returns the address or the IPv6 network by which gate counts.
func sourceOf(remote net.Addr) netip.Addr {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() {
		if network, err := addr.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return addr
}

// Pauses after an accept that failed because descriptors or memory were lacking.
const (
	acceptPause    = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// isTemporary reports whether a later accept may succeed: the machine lacks
// descriptors or memory, or the client has closed the connection already.
func isTemporary(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
		syscall.ECONNRESET, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
