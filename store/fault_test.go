package store_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"atoll.dev/store"
)

// breaker dials connections that break at a chosen message.
type breaker struct {
	mu   sync.Mutex
	text string // the message that contains it
	how  fault
	hit  chan struct{} // closed when it was hit
	then func()        // called before the writer learns of it
}

type fault int

const (
	lostRequest fault = iota // the message never reaches the server, whose side of the connection stays open
	lostReply                // the server runs the statement, and its answer is lost
	lostBoth                 // the message reaches the server; the connection breaks before it has answered
)

// arm makes the next message that contains text break its connection.
func (b *breaker) arm(text string, how fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.how, b.hit = text, how, make(chan struct{})
}

// onHit has f called when the connection is broken, before anybody here knows.
func (b *breaker) onHit(f func()) { b.then = f }

func (b *breaker) wasHit() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hit
}

func (b *breaker) use(o *store.Options) {
	o.ResolveTimeout = time.Minute // a busy machine took longer than the default to resolve an outcome
	o.Hooks.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &breakable{Conn: c, b: b}, nil
	}
}

type breakable struct {
	net.Conn
	b      *breaker
	mu     sync.Mutex
	losing chan struct{} // not nil: the next answer is lost, and then this is closed
	dead   bool
}

func (c *breakable) Write(p []byte) (int, error) {
	c.b.mu.Lock()
	broken := c.b.text != "" && bytes.Contains(p, []byte(c.b.text))
	how, hit := c.b.how, c.b.hit
	if broken {
		c.b.text = ""
	}
	c.b.mu.Unlock()
	switch {
	case !broken:
		return c.Conn.Write(p)
	case how == lostReply:
		// The driver may read already while it writes, so the answer is lost where it is read.
		c.mu.Lock()
		c.losing = hit
		c.mu.Unlock()
		return c.Conn.Write(p)
	case how == lostBoth:
		if n, err := c.Conn.Write(p); err != nil {
			return n, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakOff(hit)
	return len(p), nil
}

// breakOff breaks the connection; the caller holds the lock.
func (c *breakable) breakOff(hit chan struct{}) {
	if c.b.then != nil {
		c.b.then()
	}
	c.dead = true
	c.Conn.(*net.UnixConn).CloseRead() // wakes a reader here; the server does not notice
	close(hit)
}

func (c *breakable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.losing != nil && n > 0 {
		c.breakOff(c.losing)
		c.losing = nil
	}
	if c.dead {
		return 0, net.ErrClosed
	}
	return n, err
}

// Close of a broken connection leaves the server's side open, as a network that swallows packets does.
func (c *breakable) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		leaked.add(c.Conn)
		return nil
	}
	return c.Conn.Close()
}

// leaked are the connections that a test has left open on purpose; open closes them at the end.
var leaked leaks

type leaks struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (l *leaks) add(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
}

func (l *leaks) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}
