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

// connection is one MQTT session from CONNECT to its end. readLoop's goroutine reads
// the socket and calls the handler; writeLoop's goroutine writes the socket; mu guards
// the state that these two share with publishers and acknowledging goroutines.
type connection struct {
	client *Client
	conn   net.Conn
	read   *bufio.Reader
	out    chan *packets.ControlPacket
	closed chan struct{} // closed when the connection has ended
	once   sync.Once
	limit  uint32        // the broker's packet limit; 0 is none
	keys   fingerprint   // of the keys with which the connection was made
	window chan struct{} // one place for each publish in flight

	written atomic.Uint64 // publishes that are on the socket

	mu       sync.Mutex
	inflight *inflight
	inbox    []*inbound // received and not yet acknowledged, in order
	dead     bool
}

// inbound is a received message whose acknowledgement is not sent yet: the handler has
// not acknowledged it, or not every message before it.
type inbound struct {
	id    uint16
	acked bool
}

// run serves the connection until it fails or ctx ends. It calls subscribed once, when
// the broker has acknowledged all subscriptions.
func (c *connection) run(ctx context.Context, subscribed func()) error {
	stop := context.AfterFunc(ctx, func() { c.close() })
	defer stop()
	var writer sync.WaitGroup
	var writeErr error
	writer.Go(func() {
		writeErr = c.writeLoop(ctx)
		c.close()
	})
	var unanswered atomic.Bool
	if len(c.client.o.Subscriptions) == 0 {
		subscribed()
	} else {
		// Answers to pings alone would keep the connection open, and without subscriptions, for ever.
		limit := time.AfterFunc(c.client.o.DialTimeout, func() {
			unanswered.Store(true)
			c.close()
		})
		defer limit.Stop()
		begin := subscribed
		subscribed = func() {
			if limit.Stop() {
				begin()
			}
		}
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
	if unanswered.Load() {
		return fmt.Errorf("the broker did not answer SUBSCRIBE within %s", c.client.o.DialTimeout)
	}
	if writeErr != nil && errors.Is(err, net.ErrClosed) {
		return writeErr
	}
	return err
}

// keysInterval is the interval at which the keys on disk are read. They are a few files
// of a few kilobytes, and change every few days.
const keysInterval = 10 * time.Second

// watchKeys ends the connection when the keys on disk have changed. It ignores keys that
// cannot be read: they are being written.
func (c *connection) watchKeys() {
	ticker := time.NewTicker(c.client.keysEvery)
	defer ticker.Stop()
	for {
		select {
		case <-c.closed:
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
		case <-c.closed:
			return
		case <-ticker.C:
		}
		now := time.Now()
		c.mu.Lock()
		overdue := c.inflight.expire(now, c.written.Load())
		stalled := c.inflight.isStalled(now)
		c.mu.Unlock()
		for _, done := range overdue {
			c.client.metrics.unacknowledged.Inc()
			c.release()
			done(ErrUnacknowledged)
		}
		if stalled {
			c.client.o.Logger.Warn("the broker does not acknowledge events, connecting anew", "broker", c.client.o.Addr)
			c.close()
		}
	}
}

// close closes the socket and makes all loops return. It may be called repeatedly.
func (c *connection) close() {
	c.once.Do(func() {
		close(c.closed)
		c.conn.Close()
	})
}

// fail closes the connection and ends all publishes in flight with ErrDisconnected. No
// publish begins after it.
func (c *connection) fail() {
	c.close()
	c.mu.Lock()
	c.dead = true
	open := c.inflight.removeAll()
	c.inbox = nil
	c.mu.Unlock()
	for _, done := range open {
		done(ErrDisconnected)
	}
}

// readLoop handles the broker's packets until reading fails or the broker disconnects.
func (c *connection) readLoop(ctx context.Context, subscribed func()) error {
	readTimeout := c.client.o.KeepAlive * 3 / 2
	for {
		c.conn.SetReadDeadline(time.Now().Add(readTimeout))
		p, err := packets.ReadPacket(c.read)
		if err != nil {
			return fmt.Errorf("reading from the broker: %w", err)
		}
		switch content := p.Content.(type) {
		case *packets.Publish:
			c.handlePublish(ctx, content)
		case *packets.Puback:
			c.handlePuback(content)
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

// handlePublish decodes a message and calls the handler. It acknowledges and drops a
// message that is no CloudEvent.
func (c *connection) handlePublish(ctx context.Context, p *packets.Publish) {
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
	c.client.metrics.countReceived(e.Type)
	c.client.o.Handler(ctx, Message{Topic: p.Topic, Event: e, Ack: ack})
}

// ack marks a message as acknowledged, and sends the acknowledgements of all messages at
// the head of the inbox that are marked.
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

// send queues a packet for the writer. It returns false when the connection has ended.
func (c *connection) send(p *packets.ControlPacket) bool {
	select {
	case c.out <- p:
		return true
	case <-c.closed:
		return false
	}
}

// reserve waits for a place in the window. The caller must call publish or release next.
func (c *connection) reserve(ctx context.Context) error {
	select {
	case c.window <- struct{}{}:
		return nil
	case <-c.closed:
		return ErrDisconnected
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release frees a place in the window.
func (c *connection) release() { <-c.window }

// publish sends a packet for which the caller has reserved a place. When publish returns
// an error, the caller must release the place; otherwise the acknowledgement releases it.
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
	// Sent under the lock, so that events leave in the order of the calls. The writer never
	// takes the lock, so it can empty the channel meanwhile.
	if !c.send(p.ToControlPacket()) {
		c.inflight.remove(p.PacketID)
		return ErrDisconnected
	}
	return nil
}

// packetSize returns an upper bound of a packet's encoded size.
func packetSize(p *packets.Publish) int {
	n := len(p.Payload) + len(p.Topic) + len(p.Properties.ContentType) + 32
	for _, u := range p.Properties.User {
		n += len(u.Key) + len(u.Value) + 5
	}
	return n
}

// handlePuback releases a publish's place and calls its callback with the result.
func (c *connection) handlePuback(a *packets.Puback) {
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
	case a.ReasonCode == packets.PubackNoMatchingSubscribers && c.client.o.RequireSubscriber:
		done(ErrNoSubscriber)
	default:
		done(nil)
	}
}
