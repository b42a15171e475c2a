package backup

import (
	"net"
	"sync"
)

// gate holds the reads of a connection back while it is closed. What the other side sends meanwhile waits in the
// buffers of the operating system, so that many small messages become a few reads: to wake up for each message of a
// watch cost a follower half of its processor time. When the other side ends, what it has sent can still be read. Many
// goroutines may use a gate.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond // of isOpen, and of the connections' isClosed
	isOpen  bool
}

// newGate returns an open gate.
func newGate() *gate {
	g := &gate{isOpen: true}
	g.changed.L = &g.mu
	return g
}

// open lets the connections of wrap read.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = true
	g.changed.Broadcast()
}

// close holds the next reads back. A read that has begun may still return.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = false
}

// wrap returns a connection whose reads wait while the gate is closed. Its Close ends a read that waits.
func (g *gate) wrap(c net.Conn) net.Conn { return &gatedConn{Conn: c, gate: g} }

type gatedConn struct {
	net.Conn
	gate     *gate
	isClosed bool // guarded by gate.mu
}

func (c *gatedConn) Read(b []byte) (int, error) {
	c.gate.mu.Lock()
	for !c.gate.isOpen && !c.isClosed {
		c.gate.changed.Wait()
	}
	c.gate.mu.Unlock()
	return c.Conn.Read(b)
}

func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	c.isClosed = true
	c.gate.changed.Broadcast()
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
