package bed

import (
	"errors"
	"net"
	"sync"
	"time"
)

// link forwards connections to an address and delays their bytes in each direction, as a network does. The delay does
// not limit the bandwidth.
type link struct {
	listener net.Listener
	to       string
	delay    time.Duration

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
	copies sync.WaitGroup
}

// newLink starts a link. Close ends it with all its connections.
func newLink(to string, delay time.Duration) (*link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &link{listener: l, to: to, delay: delay, open: map[net.Conn]bool{}}
	k.copies.Go(k.accept)
	return k, nil
}

func (k *link) addr() string { return k.listener.Addr().String() }

func (k *link) accept() {
	for {
		from, err := k.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", k.to)
		if err != nil {
			from.Close()
			continue
		}
		if !k.add(from, to) {
			return
		}
		k.copies.Go(func() { k.copy(from, to) })
		k.copies.Go(func() { k.copy(to, from) })
	}
}

// add records open connections. When the link is closed, add closes them and returns false.
func (k *link) add(conns ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range conns {
		if k.closed {
			c.Close()
			continue
		}
		k.open[c] = true
	}
	return !k.closed
}

// Close ends the link and its connections.
func (k *link) Close() error {
	k.mu.Lock()
	k.closed = true
	for c := range k.open {
		c.Close()
	}
	k.mu.Unlock()
	err := k.listener.Close()
	k.copies.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

type delayed struct {
	data []byte
	due  time.Time
}

// copy copies one direction until either side ends, and then closes both connections.
func (k *link) copy(from, to net.Conn) {
	defer to.Close()
	defer from.Close()
	queue := make(chan delayed, 1<<16)
	var writer sync.WaitGroup
	writer.Go(func() {
		for d := range queue {
			if wait := time.Until(d.due); wait > 0 {
				<-time.After(wait)
			}
			if _, err := to.Write(d.data); err != nil {
				from.Close()
			}
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			queue <- delayed{append([]byte(nil), buffer[:n]...), time.Now().Add(k.delay)}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	writer.Wait()
}
