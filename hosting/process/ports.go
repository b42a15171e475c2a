package process

import (
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"sync"

	"atoll.dev/hosting/controlplane"
)

// The default range lies above a region's own ports and below the ports that the
// kernel gives to outgoing connections.
const (
	firstPort = 30000
	lastPort  = 32767
)

// ports assigns loopback ports, each to one plane, by the planes' slots.
type ports struct {
	first, last int

	mu    sync.Mutex
	taken map[int]controlplane.ID
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// claim reserves the port that a plane had, whatever listens there now: that may
// be the plane itself. It returns false when another plane has the port.
func (p *ports) claim(slot controlplane.ID, port int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if holder, ok := p.taken[port]; ok && holder != slot {
		return false
	}
	p.taken[port] = slot
	return true
}

// choose reserves a free port for a plane, never its present port. The search begins
// at a hash of the slot, so that several runtimes on one machine rarely collide.
func (p *ports) choose(slot controlplane.ID) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var before int
	for port, holder := range p.taken {
		if holder == slot {
			before = port
			delete(p.taken, port)
		}
	}
	h := fnv.New32a()
	h.Write([]byte(slot.String()))
	n := p.last - p.first + 1
	for i := range n {
		port := p.first + (int(h.Sum32()%uint32(n))+i)%n
		if _, taken := p.taken[port]; taken || port == before || !isFree(port) {
			continue
		}
		p.taken[port] = slot
		return port, nil
	}
	return 0, fmt.Errorf("no port from %d to %d is free", p.first, p.last)
}

func (p *ports) release(slot controlplane.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for port, holder := range p.taken {
		if holder == slot {
			delete(p.taken, port)
		}
	}
}

// isFree reports whether nothing listens on a loopback port.
func isFree(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}
