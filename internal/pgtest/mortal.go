package pgtest

import (
	"context"
	"net"
	"sync"
)

// MortalProcess stands for a process that is killed at one of its statements: all of its connections to
// PostgreSQL end there. Its Dial replaces the dialling of a store.
type MortalProcess struct {
	end   func()
	after bool

	mu      sync.Mutex
	isArmed bool
	left    int // statements until the end
	isDead  bool
	conns   []net.Conn
}

// KillMoment is whether PostgreSQL gets the statement at which a process is killed.
type KillMoment bool

// The moments.
const (
	BeforeStatement KillMoment = false
	AfterStatement  KillMoment = true // it gets the statement, and the process never gets the answer
)

// NewMortalProcess returns a process that lives until Arm, and then for so many statements. end is called
// when it is killed; it must not use the database.
func NewMortalProcess(left int, moment KillMoment, end func()) *MortalProcess {
	return &MortalProcess{left: left, after: moment == AfterStatement, end: end}
}

// Arm begins to count statements.
func (p *MortalProcess) Arm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isArmed = true
}

// IsDead reports whether the process was killed.
func (p *MortalProcess) IsDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isDead
}

// Dial dials a connection of the process.
func (p *MortalProcess) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDead {
		c.Close()
		return nil, net.ErrClosed
	}
	p.conns = append(p.conns, c)
	return &mortalConn{c, p}, nil
}

type mortalConn struct {
	net.Conn
	p *MortalProcess
}

// Write kills the process at its last statement: before the server gets it, or after.
func (c *mortalConn) Write(data []byte) (int, error) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.isDead {
		return 0, net.ErrClosed
	}
	if c.p.isArmed {
		if c.p.left--; c.p.left < 0 {
			c.p.isDead = true
			c.p.end()
			if c.p.after {
				_, _ = c.Conn.Write(data)
				_ = c.Conn.(*net.UnixConn).CloseWrite() // the server reads the statement, then the end
			}
			for _, other := range c.p.conns {
				if other != c.Conn || !c.p.after {
					other.Close()
				}
			}
			return 0, net.ErrClosed
		}
	}
	return c.Conn.Write(data)
}

func (c *mortalConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if c.p.IsDead() {
		return 0, net.ErrClosed
	}
	return n, err
}
