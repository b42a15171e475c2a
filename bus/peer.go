package bus

import (
	"errors"
	"net"
	"sync"
	"time"
)

// peer is the connection of a client whose certificate is verified. Its writes
// never block: the broker's library holds a client's lock while it writes, and takes
// that lock for every message to the client, so a client that does not read would
// block everyone that publishes to it. Write appends to a buffer that the connection's
// own goroutine sends; a client whose buffer is full is disconnected.
type peer struct {
	net.Conn   // TLS
	raw        net.Conn
	name       string
	clientID   string        // "" until the client owns one
	ended      chan struct{} // closed when the library has removed the client
	limit      int           // bytes
	onSlow     func()        // called when the client is disconnected because its buffer is full
	identified func()        // called when the client owns a client id

	mu      sync.Mutex
	pending []byte
	closing bool
	wake    chan struct{} // holds a token while send has work

	flow flow // holds the messages beyond the client's Receive Maximum

	queued      int           // messages in the library's queue
	queuedBytes int           // size of these messages
	progress    chan struct{} // closed when less is unsent; nil while no caller waits
}

const (
	// writeTimeout bounds one write to a client.
	writeTimeout = 15 * time.Second
	// closeTimeout bounds the writes to a client whose connection is being closed.
	closeTimeout = time.Second
)

var errSlow = errors.New("the client does not read what is sent to it")

func newPeer(secured, raw net.Conn, name string, limit int, onSlow func()) *peer {
	return &peer{Conn: secured, raw: raw, name: name, ended: make(chan struct{}), identified: func() {}, limit: limit,
		onSlow: onSlow, wake: make(chan struct{}, 1)}
}

// countQueued adds to the number of messages in the library's queue; negative numbers
// are messages that leave it.
func (p *peer) countQueued(messages, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued += messages
	p.queuedBytes += bytes
	if messages < 0 {
		p.wakeWaiters()
	}
}

// wakeWaiters wakes the callers of waitForRoom. The caller holds the lock.
func (p *peer) wakeWaiters() {
	if p.progress != nil {
		close(p.progress)
		p.progress = nil
	}
}

// waitForRoom waits until there is room for a message, no longer than timeout, and
// reports whether there is. It uses half of the limit only: the other half is for
// the messages of callers that checked at the same time.
func (p *peer) waitForRoom(timeout time.Duration) bool {
	var expired <-chan time.Time
	for {
		p.mu.Lock()
		if p.closing || p.queued < maxQueued && (p.unsentBytes() < p.limit/2 || p.unsentBytes() == 0) {
			p.mu.Unlock()
			return true
		}
		if p.progress == nil {
			p.progress = make(chan struct{})
		}
		progress := p.progress
		p.mu.Unlock()
		if expired == nil {
			t := time.NewTimer(timeout)
			defer t.Stop()
			expired = t.C
		}
		select {
		case <-progress:
		case <-expired:
			return false
		}
	}
}

// unsentBytes returns the size of everything that is not sent yet. The caller holds the
// lock.
func (p *peer) unsentBytes() int { return len(p.pending) + p.flow.bytes + p.queuedBytes }

// Write appends a copy of b to the buffer, or disconnects the client when the buffer is
// full.
func (p *peer) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return 0, net.ErrClosed
	}
	// An empty buffer takes one message of any size.
	if full := len(p.pending)+p.flow.bytes > 0 && len(p.pending)+p.flow.bytes+len(b) > p.limit; full {
		p.closing, p.pending = true, nil
		p.wakeWaiters()
		p.mu.Unlock()
		p.signal()
		p.onSlow()
		p.reset()
		return 0, errSlow
	}
	p.pending = p.flow.appendSendable(p.pending, b)
	p.mu.Unlock()
	p.signal()
	return len(b), nil
}

// setReceiveMaximum sets how many messages the client may have unacknowledged.
func (p *peer) setReceiveMaximum(maximum int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flow.maximum = maximum
}

// acknowledge handles a PUBACK of the client.
func (p *peer) acknowledge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return
	}
	if p.pending = p.flow.acknowledge(p.pending); len(p.pending) > 0 {
		p.signal()
	}
}

// Close makes send close the connection after it has sent the buffer.
func (p *peer) Close() error {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.signal()
	return nil
}

// signal wakes send.
func (p *peer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// send writes the buffer to the client until Close is called or a write fails, then
// closes the TCP connection.
func (p *peer) send() {
	defer p.raw.Close()
	var spare []byte
	for range p.wake {
		for {
			p.mu.Lock()
			out, closing := p.pending, p.closing
			p.pending = spare[:0]
			if len(out) > 0 {
				p.wakeWaiters()
			}
			p.mu.Unlock()
			if len(out) == 0 {
				if closing {
					p.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
					p.Conn.Close() // sends close_notify of TLS
					return
				}
				spare = out
				break
			}
			wait := writeTimeout
			if closing {
				wait = closeTimeout
			}
			p.Conn.SetWriteDeadline(time.Now().Add(wait))
			if _, err := p.Conn.Write(out); err != nil {
				p.mu.Lock()
				p.closing, p.pending = true, nil
				p.wakeWaiters()
				p.mu.Unlock()
				return
			}
			if spare = out; cap(spare) > 1<<20 {
				spare = nil // the buffer of one large message is not kept
			}
		}
	}
}

// SetDeadline sets the deadline of reads only: send sets those of writes.
func (p *peer) SetDeadline(t time.Time) error { return p.Conn.SetReadDeadline(t) }

// reset closes the connection at once and drops everything unsent.
func (p *peer) reset() { resetConnection(p.raw) }

// resetConnection closes a connection with a TCP reset, so that the kernel keeps no data
// of it.
func resetConnection(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
