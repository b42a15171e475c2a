package pgtest

import (
	"context"
	"net"
	"sync"
)

// KillableProcess stands for a process that is killed at one of its statements: all of its connections to
// PostgreSQL end there. Its Dial replaces the dialling of a store.
type KillableProcess struct {
	end   func()
	after bool

	mu         sync.Mutex
	isCounting bool
	left       int // statements until the kill
	isKilled   bool
	conns      []net.Conn
}

// KillMoment determines whether PostgreSQL receives the statement at which a process is killed.
type KillMoment bool

// The moments.
const (
	BeforeStatement KillMoment = false
	AfterStatement  KillMoment = true // it gets the statement, and the process never gets the answer
)

// NewKillableProcess returns a process that executes so many statements after CountStatements and is killed at the next
// one. end is called when the process is killed; end must not use the database.
func NewKillableProcess(left int, moment KillMoment, end func()) *KillableProcess {
	return &KillableProcess{left: left, after: moment == AfterStatement, end: end}
}

// CountStatements begins to count; statements before it are not limited.
func (p *KillableProcess) CountStatements() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCounting = true
}

// IsKilled reports whether the process was killed.
func (p *KillableProcess) IsKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isKilled
}

// Dial dials a connection of the process.
func (p *KillableProcess) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isKilled {
		c.Close()
		return nil, net.ErrClosed
	}
	p.conns = append(p.conns, c)
	return &killableConn{c, p}, nil
}

type killableConn struct {
	net.Conn
	p *KillableProcess
}

// Write kills the process at its last statement: before the server gets it, or after.
func (c *killableConn) Write(data []byte) (int, error) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.isKilled {
		return 0, net.ErrClosed
	}
	if c.p.isCounting {
		if c.p.left--; c.p.left < 0 {
			c.p.isKilled = true
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

func (c *killableConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if c.p.IsKilled() {
		return 0, net.ErrClosed
	}
	return n, err
}
