package backup

import (
	"net"
	"sync"
)

// A gate delays the reads of its connections while the gate is closed. The operating system buffers the data
// meanwhile, so that many small messages become a few reads. Without a gate a follower spent half of its processor time
// on wakeups, one for each message of a watch. The buffered data can be read also after the peer has ended. Several
// goroutines may use a gate at once.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond // signals a change of isOpen, or of isClosed of a connection
	isOpen  bool
	isFree  bool // isOpen stays true
}

// newGate returns an open gate.
func newGate() *gate {
	g := &gate{isOpen: true}
	g.changed.L = &g.mu
	return g
}

// open lets all wrapped connections read.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = true
	g.changed.Broadcast()
}

// free opens the gate for ever.
func (g *gate) free() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen, g.isFree = true, true
	g.changed.Broadcast()
}

// close delays the reads that begin from now on. A read that has begun may still return. After free it does nothing.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = g.isFree
}

// wrap returns a connection whose reads wait while the gate is closed. Its Close ends a delayed read.
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
