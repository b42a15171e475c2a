package bus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// connection is one MQTT session from CONNECT to its end. Its reader goroutine
// calls the handler; its writer owns the socket's other half; mu guards what
// publishers, acknowledgers and those two share.
type connection struct {
	client *Client
	conn   net.Conn
	read   *bufio.Reader
	out    chan *packets.ControlPacket
	gone   chan struct{} // closed when the connection is of no more use
	once   sync.Once
	limit  uint32        // the broker's packet limit; 0 is none
	keys   fingerprint   // of what the connection was made with
	window chan struct{} // one place for each publish in flight

	written atomic.Uint64 // publishes that are on the socket

	mu       sync.Mutex
	inflight *inflight
	inbox    []*inbound // received and not yet acknowledged, in order
	dead     bool
}

// inbound is a received message that waits for its acknowledgement, and for
// those of all before it.
type inbound struct {
	id    uint16
	acked bool
}

// run serves the connection until it fails or ctx ends; subscribed is called
// when events can flow both ways.
func (c *connection) run(ctx context.Context, subscribed func()) error {
	stop := context.AfterFunc(ctx, func() { c.close() })
	defer stop()
	var writer sync.WaitGroup
	var writeErr error
	writer.Go(func() {
		writeErr = c.writeLoop(ctx)
		c.close()
	})
	if len(c.client.o.Subscriptions) == 0 {
		subscribed()
	}
	var watchers sync.WaitGroup
	watchers.Go(c.watchAcknowledgements)
	if c.client.o.Keys != nil {
		watchers.Go(c.watchKeys)
	}
	err := c.readLoop(ctx, subscribed)
	c.close()
	writer.Wait()
	watchers.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if writeErr != nil && errors.Is(err, net.ErrClosed) {
		return writeErr
	}
	return err
}

// keysInterval is how often keys on disk are looked at. They are a few files of
// a few kilobytes, and are renewed every some days.
const keysInterval = 10 * time.Second

// watchKeys ends the connection when its keys are not those on disk any more.
// Keys that cannot be read are on their way.
func (c *connection) watchKeys() {
	ticker := time.NewTicker(c.client.keysEvery)
	defer ticker.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-ticker.C:
		}
		if _, now, err := loadKeys(c.client.o.Keys); err == nil && now != c.keys {
			c.client.o.Logger.Info("the keys for the broker have changed, connecting anew", "broker", c.client.o.Addr)
			c.close()
		}
	}
}

// watchAcknowledgements fails publishes that the broker does not acknowledge in
// time, and ends a connection on which it acknowledges nothing at all.
func (c *connection) watchAcknowledgements() {
	ticker := time.NewTicker(max(c.client.o.AckTimeout/4, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-ticker.C:
		}
		now := time.Now()
		c.mu.Lock()
		overdue := c.inflight.expire(now, c.written.Load())
		useless := c.inflight.useless(now)
		c.mu.Unlock()
		for _, done := range overdue {
			c.client.metrics.unacknowledged.Inc()
			c.release()
			done(ErrUnacknowledged)
		}
		if useless {
			c.client.o.Logger.Warn("the broker does not acknowledge events, connecting anew", "broker", c.client.o.Addr)
			c.close()
		}
	}
}

func (c *connection) close() {
	c.once.Do(func() {
		close(c.gone)
		c.conn.Close()
	})
}

// fail ends what is in flight. No publish begins after it.
func (c *connection) fail() {
	c.close()
	c.mu.Lock()
	c.dead = true
	open := c.inflight.fail()
	c.inbox = nil
	c.mu.Unlock()
	for _, done := range open {
		done(ErrDisconnected)
	}
}

func (c *connection) readLoop(ctx context.Context, subscribed func()) error {
	silence := c.client.o.KeepAlive * 3 / 2
	for {
		c.conn.SetReadDeadline(time.Now().Add(silence))
		p, err := packets.ReadPacket(c.read)
		if err != nil {
			return fmt.Errorf("reading from the broker: %w", err)
		}
		switch content := p.Content.(type) {
		case *packets.Publish:
			c.received(ctx, content)
		case *packets.Puback:
			c.acknowledged(content)
		case *packets.Suback:
			for i, code := range content.Reasons {
				if code >= 0x80 {
					return fmt.Errorf("the broker refuses the subscription %q: reason 0x%02x",
						c.client.o.Subscriptions[min(i, len(c.client.o.Subscriptions)-1)], code)
				}
			}
			subscribed()
		case *packets.Disconnect:
			return fmt.Errorf("the broker ended the connection: reason 0x%02x", content.ReasonCode)
		}
	}
}

func (c *connection) received(ctx context.Context, p *packets.Publish) {
	ack := func() {}
	if p.QoS > 0 {
		in := &inbound{id: p.PacketID}
		c.mu.Lock()
		c.inbox = append(c.inbox, in)
		c.mu.Unlock()
		ack = func() { c.ack(in) }
	}
	e, err := decode(p)
	if err != nil {
		c.client.metrics.undecodable.Inc()
		if c.client.badLog.Allow() {
			c.client.o.Logger.Warn("message dropped", "topic", p.Topic, "bytes", len(p.Payload), "error", err)
		}
		ack()
		return
	}
	c.client.metrics.received(e.Type)
	c.client.o.Handler(ctx, Message{Topic: p.Topic, Event: e, Ack: ack})
}

// ack marks a message and sends the acknowledgements that are due in order.
func (c *connection) ack(in *inbound) {
	c.mu.Lock()
	in.acked = true
	n := 0
	for n < len(c.inbox) && c.inbox[n].acked {
		n++
	}
	due := c.inbox[:n]
	c.inbox = c.inbox[n:]
	// Sent under the lock, so that two goroutines do not change the order.
	defer c.mu.Unlock()
	for _, in := range due {
		c.send(&packets.ControlPacket{
			FixedHeader: packets.FixedHeader{Type: packets.PUBACK},
			Content:     &packets.Puback{PacketID: in.id, Properties: &packets.Properties{}},
		})
	}
}

// send hands a packet to the writer, or drops it when the connection is gone.
func (c *connection) send(p *packets.ControlPacket) bool {
	select {
	case c.out <- p:
		return true
	case <-c.gone:
		return false
	}
}

// reserve waits for a place in the window. publish or release must follow.
func (c *connection) reserve(ctx context.Context) error {
	select {
	case c.window <- struct{}{}:
		return nil
	case <-c.gone:
		return ErrDisconnected
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *connection) release() { <-c.window }

// publish sends a packet for which there is a place. When it fails the place is
// still the caller's.
func (c *connection) publish(p *packets.Publish, done func(error)) error {
	if c.limit > 0 && packetSize(p) > int(c.limit) {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, packetSize(p), c.limit)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return ErrDisconnected
	}
	p.PacketID = c.inflight.add(done)
	// Under the lock, so that events leave in the order of their callers. The
	// writer never takes it, so it drains.
	if !c.send(p.ToControlPacket()) {
		c.inflight.remove(p.PacketID)
		return ErrDisconnected
	}
	return nil
}

func packetSize(p *packets.Publish) int {
	n := len(p.Payload) + len(p.Topic) + len(p.Properties.ContentType) + 32
	for _, u := range p.Properties.User {
		n += len(u.Key) + len(u.Value) + 5
	}
	return n
}

func (c *connection) acknowledged(a *packets.Puback) {
	c.mu.Lock()
	done := c.inflight.acknowledge(a.PacketID, time.Now())
	c.mu.Unlock()
	if done == nil {
		return
	}
	c.release()
	switch {
	case a.ReasonCode == packets.PubackNotAuthorized:
		done(ErrNotAuthorized)
	case a.ReasonCode >= 0x80:
		done(fmt.Errorf("the broker refuses the event: reason 0x%02x", a.ReasonCode))
	case a.ReasonCode == packets.PubackNoMatchingSubscribers && c.client.o.TellUnheard:
		done(ErrUnheard)
	default:
		done(nil)
	}
}
