package bus

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Limits of connections that have not proven yet whose they are: they cost a
// descriptor each and are anybody's. A region's agents may all come from one
// address, and at once; one that is refused comes again within two seconds.
const (
	maxUnproven         = 1024
	maxUnprovenOfSource = 256
	// provenWithin is how long a client may take from the connection to CONNECT.
	provenWithin = 5 * time.Second
)

// gate counts unproven connections, in total and by source: an IPv4 address, or
// an IPv6 network of 64 bits.
type gate struct {
	total, ofSource int // limits

	mu       sync.Mutex
	open     int
	bySource map[netip.Addr]int
}

func newGate() *gate {
	return &gate{total: maxUnproven, ofSource: maxUnprovenOfSource, bySource: map[netip.Addr]int{}}
}

// enter counts a connection. It returns nil where there are too many; else leave
// has to be called once the connection is proven, or ended. It may be called
// twice.
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

// Pauses after an accept that failed for want of descriptors or memory.
const (
	acceptPause    = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// isPassing says that an accept may succeed later: the machine lacks descriptors
// or memory, or the client is gone again.
func isPassing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
		syscall.ECONNRESET, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
