package konnectivity

import (
	"context"
	"net"
	"sync"
	"time"

	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

const (
	// maxUnread bounds the bytes of a connection that the API server has not read. More of them block the agent, with
	// all connections of its node: the protocol has no flow control for one connection.
	maxUnread = 2 << 20
	// stallLimit ends a connection whose reader has blocked the agent for so long, with short breaks at most.
	stallLimit = 20 * time.Second
	// perPacket is what a packet costs beside its bytes.
	perPacket = 64
)

// conn is one connection through an agent. The API server has the other end of its pipe.
type conn struct {
	agent *agent
	id    int64
	pipe  net.Conn

	mu      sync.Mutex
	unread  [][]byte
	size    int // of unread
	ended   bool
	change  chan struct{} // closed and replaced after each change of the fields above
	blocked time.Duration // for which the reader has blocked the agent since it was ahead
}

func newConn(a *agent, id int64) *conn { return &conn{agent: a, id: id, change: make(chan struct{})} }

// start begins to copy in both directions, and returns the API server's end.
func (c *conn) start() net.Conn {
	var theirs net.Conn
	c.pipe, theirs = net.Pipe()
	go c.copyToAgent()
	go c.copyFromAgent()
	return theirs
}

// copyToAgent ends when the API server has closed its end, or the agent has closed the connection.
func (c *conn) copyToAgent() {
	for {
		b := make([]byte, chunk) // the packet keeps it
		n, err := c.pipe.Read(b)
		if n > 0 {
			err2 := c.agent.send(context.Background(), &pb.Packet{Type: pb.PacketType_DATA, Payload: &pb.Packet_Data{
				Data: &pb.Data{ConnectID: c.id, Data: b[:n]},
			}})
			if err == nil {
				err = err2
			}
		}
		if err != nil {
			break
		}
	}
	if c.agent.takeConn(c.id) == c {
		c.agent.sendClose(c.id)
	}
	c.end()
	c.pipe.Close()
}

// copyFromAgent ends when the agent has closed the connection and everything before is read.
func (c *conn) copyFromAgent() {
	defer c.pipe.Close()
	for {
		b, ok := c.next()
		if !ok {
			return
		}
		if _, err := c.pipe.Write(b); err != nil {
			return
		}
	}
}

// next waits for received bytes; false at the end.
func (c *conn) next() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if len(c.unread) > 0 {
			b := c.unread[0]
			c.unread = c.unread[1:]
			c.size -= len(b) + perPacket
			c.notify()
			return b, true
		}
		if c.ended {
			return nil, false
		}
		c.await(nil)
	}
}

// receive stores bytes for the reader. It waits while there is no room, and returns false for a reader that has blocked
// the agent for stallLimit.
func (c *conn) receive(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size < maxUnread/2 {
		c.blocked = 0
	}
	for c.size > 0 && c.size+len(b)+perPacket > maxUnread && !c.ended {
		begun := time.Now()
		timer := time.NewTimer(stallLimit - c.blocked)
		c.await(timer.C)
		timer.Stop()
		c.blocked += time.Since(begun)
		if c.blocked >= stallLimit && !c.ended {
			c.ended, c.unread, c.size = true, nil, 0
			c.notify()
			c.pipe.Close()
			return false
		}
	}
	if !c.ended {
		c.unread = append(c.unread, b)
		c.size += len(b) + perPacket
		c.notify()
	}
	return true
}

// end marks the connection as closed by the agent.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.notify()
}

// notify wakes all waiters; the mutex is held.
func (c *conn) notify() {
	close(c.change)
	c.change = make(chan struct{})
}

// await releases the mutex until the next change or the timer.
func (c *conn) await(timer <-chan time.Time) {
	change := c.change
	c.mu.Unlock()
	select {
	case <-change:
	case <-timer:
	}
	c.mu.Lock()
}
