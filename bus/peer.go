package bus

import (
	"errors"
	"net"
	"sync"
	"time"
)

// peer is a client's connection whose owner is known, and whose writes never
// wait: the broker's library holds a client's lock while it writes, and takes
// it for every message to that client, so one client that does not read would
// stall whoever publishes to it. Writes go into a buffer that a goroutine of
// the connection's own sends; a client whose buffer is full is cut off.
type peer struct {
	net.Conn // TLS
	raw      net.Conn
	name     string
	clientID string        // once it owns one
	ended    chan struct{} // closed when the library has forgotten the client
	limit    int           // bytes
	slow     func()        // called when the client is cut off
	proven   func()        // called when it owns a client id

	mu      sync.Mutex
	pending []byte
	closing bool
	wake    chan struct{} // has a token when there is something to do

	flow flow // what the client has no room for yet

	queued      int           // messages in the library's queue
	queuedBytes int           // and their size
	progress    chan struct{} // closed when there is less; nil when nobody waits
}

const (
	// stuckAfter is how long one write to a client may take.
	stuckAfter = 15 * time.Second
	// farewell is how long the last words to a client may take.
	farewell = time.Second
)

var errSlow = errors.New("the client does not read what is sent to it")

func newPeer(secured, raw net.Conn, name string, limit int, slow func()) *peer {
	return &peer{Conn: secured, raw: raw, name: name, ended: make(chan struct{}), proven: func() {}, limit: limit,
		slow: slow, wake: make(chan struct{}, 1)}
}

// queue counts what enters and leaves the library's queue.
func (p *peer) queue(messages, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued += messages
	p.queuedBytes += bytes
	if messages < 0 {
		p.less()
	}
}

// less wakes who waits for room. The caller has the lock.
func (p *peer) less() {
	if p.progress != nil {
		close(p.progress)
		p.progress = nil
	}
}

// room waits until there is room for a message, no longer than patience, and
// says whether there is. Half of the limit is for what others, who looked at
// the same time, are about to add.
func (p *peer) room(patience time.Duration) bool {
	var timeout <-chan time.Time
	for {
		p.mu.Lock()
		if p.closing || p.queued < maxQueued && (p.waiting() < p.limit/2 || p.waiting() == 0) {
			p.mu.Unlock()
			return true
		}
		if p.progress == nil {
			p.progress = make(chan struct{})
		}
		progress := p.progress
		p.mu.Unlock()
		if timeout == nil {
			t := time.NewTimer(patience)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-progress:
		case <-timeout:
			return false
		}
	}
}

// waiting is what is to be sent, in bytes. The caller has the lock.
func (p *peer) waiting() int { return len(p.pending) + p.flow.bytes + p.queuedBytes }

// Write takes a copy of b, or cuts the client off when it has too much to read.
func (p *peer) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return 0, net.ErrClosed
	}
	// One message is always taken, however large.
	if full := len(p.pending)+p.flow.bytes > 0 && len(p.pending)+p.flow.bytes+len(b) > p.limit; full {
		p.closing, p.pending = true, nil
		p.less()
		p.mu.Unlock()
		p.signal()
		p.slow()
		p.cut()
		return 0, errSlow
	}
	p.pending = p.flow.pass(p.pending, b)
	p.mu.Unlock()
	p.signal()
	return len(b), nil
}

// receives says how many messages the client takes without an acknowledgement.
func (p *peer) receives(maximum int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flow.maximum = maximum
}

// acknowledged takes a PUBACK of the client.
func (p *peer) acknowledged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return
	}
	if p.pending = p.flow.release(p.pending); len(p.pending) > 0 {
		p.signal()
	}
}

// Close ends the connection once what was written is sent.
func (p *peer) Close() error {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.signal()
	return nil
}

func (p *peer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// send writes what is pending until the connection is closed. It closes the
// real one.
func (p *peer) send() {
	defer p.raw.Close()
	var spare []byte
	for range p.wake {
		for {
			p.mu.Lock()
			out, closing := p.pending, p.closing
			p.pending = spare[:0]
			if len(out) > 0 {
				p.less()
			}
			p.mu.Unlock()
			if len(out) == 0 {
				if closing {
					p.Conn.SetWriteDeadline(time.Now().Add(farewell))
					p.Conn.Close() // says goodbye in TLS
					return
				}
				spare = out
				break
			}
			wait := stuckAfter
			if closing {
				wait = farewell
			}
			p.Conn.SetWriteDeadline(time.Now().Add(wait))
			if _, err := p.Conn.Write(out); err != nil {
				p.mu.Lock()
				p.closing, p.pending = true, nil
				p.less()
				p.mu.Unlock()
				return
			}
			if spare = out; cap(spare) > 1<<20 {
				spare = nil // one large message does not keep its memory
			}
		}
	}
}

// SetDeadline is for reads only: writes have deadlines of their own.
func (p *peer) SetDeadline(t time.Time) error { return p.Conn.SetReadDeadline(t) }

// cut ends the connection without a word and drops what is on its way.
func (p *peer) cut() { cutOff(p.raw) }

// cutOff ends a connection so that nothing of it is left in the system.
func cutOff(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
