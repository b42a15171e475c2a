package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"atoll.dev/internal/quick"
)

// A publish expires when its acknowledgement is overdue, and not while it waits
// behind others on a slow connection.
func TestInflight(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	f := newInflight(10 * time.Second)
	var ids []uint16
	for range 4 {
		ids = append(ids, f.add(func(error) {}))
	}
	for _, step := range []struct {
		now     int
		written uint64
		ack     int // index of the publish that is acknowledged before, or -1
		overdue int
		useless bool
	}{
		{0, 3, -1, 0, false}, // three are written, the fourth is in the buffer
		{9, 3, 0, 0, false},  // the first is acknowledged
		{12, 3, -1, 0, false},
		{14, 4, 2, 1, false}, // the third: the second is lost
		{23, 4, -1, 0, false},
		{24, 4, -1, 1, false}, // nothing has come for ten seconds: the fourth is lost, too
		{43, 4, -1, 0, false},
		{44, 4, -1, 0, true},  // thirty seconds after it was written
		{45, 4, 3, 0, false},  // it comes after all
		{100, 4, 1, 0, false}, // and so does the second
	} {
		if step.ack >= 0 {
			f.acknowledge(ids[step.ack], at(step.now))
		}
		if got := len(f.expire(at(step.now), step.written)); got != step.overdue {
			t.Errorf("after %d s %d are overdue, not %d", step.now, got, step.overdue)
		}
		if got := f.isStalled(at(step.now)); got != step.useless {
			t.Errorf("after %d s the connection is useless: %v", step.now, got)
		}
	}
	if len(f.sent) != 0 || f.expired != 0 {
		t.Errorf("%d publishes are left, %d of them expired", len(f.sent), f.expired)
	}
}

// An id is not reused while its acknowledgement can still arrive, and lost ids end the connection
// before none is left.
func TestInflightKeepsIDsOfExpiredPublishes(t *testing.T) {
	f := newInflight(time.Second)
	now := time.Unix(1000, 0)
	seen := map[uint16]bool{}
	const lost = 1000 // in each round
	for written := uint64(0); !f.isStalled(now); {
		if written > 2*reservedIDs {
			t.Fatal("the connection stays although its ids are used up")
		}
		var id uint16
		for range lost + 1 { // the last one is acknowledged
			if id = f.add(func(error) {}); id == 0 || seen[id] {
				t.Fatalf("id %d is used again", id)
			}
			seen[id] = true
			written++
		}
		f.expire(now, written)
		now = now.Add(2 * time.Second)
		f.acknowledge(id, now)
		delete(seen, id)
		if got := len(f.expire(now, written)); got != lost {
			t.Fatalf("%d are overdue", got)
		}
	}
}

// forgetfulBroker accepts connections and acknowledges the publishes that acks selects.
type forgetfulBroker struct {
	addr     string
	acks     func(n int64) bool // n counts all publishes
	silent   atomic.Int64       // how many connections get no answer to SUBSCRIBE
	received atomic.Int64
	connects atomic.Int64
}

func newForgetfulBroker(t *testing.T, acks func(n int64) bool) *forgetfulBroker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &forgetfulBroker{addr: l.Addr().String(), acks: acks}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return b
}

func (b *forgetfulBroker) serve(conn net.Conn) {
	defer conn.Close()
	for {
		p, err := packets.ReadPacket(conn)
		if err != nil {
			return
		}
		var reply *packets.ControlPacket
		switch content := p.Content.(type) {
		case *packets.Connect:
			b.connects.Add(1)
			reply = packets.NewControlPacket(packets.CONNACK)
		case *packets.Publish:
			if b.acks(b.received.Add(1)) {
				reply = packets.NewControlPacket(packets.PUBACK)
				reply.Content.(*packets.Puback).PacketID = content.PacketID
			}
		case *packets.Subscribe:
			if b.connects.Load() > b.silent.Load() {
				reply = packets.NewControlPacket(packets.SUBACK)
				suback := reply.Content.(*packets.Suback)
				suback.PacketID, suback.Reasons = content.PacketID, []byte{1}
			}
		case *packets.Pingreq:
			reply = packets.NewControlPacket(packets.PINGRESP)
		}
		if reply != nil {
			if _, err := reply.WriteTo(conn); err != nil {
				return
			}
		}
	}
}

func (b *forgetfulBroker) client(t *testing.T, o ClientOptions) *Client {
	t.Helper()
	up := make(chan struct{}, 100)
	o.Addr, o.ClientID = b.addr, "c"
	o.OnConnected = func(context.Context) { up <- struct{}{} }
	c := NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	receive(t, up)
	return c
}

// A broker drops publishes above a quota without acknowledgement: each dropped publish fails within
// the limit, and the others are not delayed, also if more are lost than the window has places.
func TestI6LostAcknowledgementsBlockNoPublisher(t *testing.T) {
	quick.LeavesOut(t, "waits for the time-outs of lost acknowledgements")
	t.Parallel() // waits for two acknowledgement limits, which are longer than a pause of a busy machine
	const events = 16
	b := newForgetfulBroker(t, func(n int64) bool { return n%2 == 0 })
	c := b.client(t, ClientOptions{AckTimeout: 10 * time.Second, Window: 4})
	lost, taken := 0, 0
	results := make(chan error, events)
	for n := range events {
		if err := c.PublishAsync(t.Context(), "t", testEvent(fmt.Sprint(n)),
			func(err error) { results <- err }); err != nil {
			t.Fatal(err)
		}
	}
	for range events {
		switch err := receive(t, results); {
		case err == nil:
			taken++
		case errors.Is(err, ErrUnacknowledged):
			lost++
		default:
			t.Fatal(err)
		}
	}
	if lost != events/2 || taken != events/2 {
		t.Errorf("%d events were taken and %d lost of %d", taken, lost, events)
	}
	if n := b.connects.Load(); n != 1 {
		t.Errorf("the client connected %d times", n)
	}
}

// A broker that answers pings and acknowledges nothing more is left for a new
// connection.
func TestI6AConnectionWithoutAcknowledgementsIsReplaced(t *testing.T) {
	var b *forgetfulBroker
	b = newForgetfulBroker(t, func(int64) bool { return b.connects.Load() > 1 })
	c := b.client(t, ClientOptions{AckTimeout: 200 * time.Millisecond, Window: 4})
	failed := 0
	for deadline := time.Now().Add(hangLimit); ; failed++ {
		err := c.Publish(t.Context(), "t", testEvent("1"))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no event was taken")
		}
		if !errors.Is(err, ErrUnacknowledged) && !errors.Is(err, ErrDisconnected) {
			t.Fatal(err)
		}
	}
	if failed == 0 || b.connects.Load() < 2 { // more where a pause of the machine exceeds the limit
		t.Errorf("%d events failed, on %d connections", failed, b.connects.Load())
	}
}

// A broker that answers pings but not SUBSCRIBE is left for a new connection: without
// subscriptions the client would receive nothing, and would never call OnConnected.
func TestI6AConnectionWithoutSubscriptionsIsReplaced(t *testing.T) {
	quick.LeavesOut(t, "waits for the watchdog of connections")
	b := newForgetfulBroker(t, func(int64) bool { return true })
	b.silent.Store(1)
	b.client(t, ClientOptions{DialTimeout: time.Second, KeepAlive: time.Second, Subscriptions: []string{"t"}})
	if n := b.connects.Load(); n < 2 {
		t.Errorf("the client has subscribed on connection %d", n)
	}
}
