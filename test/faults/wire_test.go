package faults

import (
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// wire is a proxy between the broker and its clients. It can lose, repeat and delay, and
// so reorder, publishes in both directions after it has acknowledged them to the
// publisher, as a broker that crashes does; and it can cut connections.
type wire struct {
	t      testing.TB
	site   *testsite.Site
	addr   string
	broker string // its address

	mu     sync.Mutex
	random *rand.Rand
	faults faults
	conns  map[net.Conn]bool
	passed map[clientDirection]int // publishes

	lost, doubled, delayed, cut atomic.Int64
}

// clientDirection is one direction of one client's connection.
type clientDirection struct {
	client pki.Name
	to     direction
}

type direction string

const (
	upstream   direction = "to the broker"
	downstream direction = "to the client"
)

// count returns how many publishes of a client have passed in a direction.
func (w *wire) count(client pki.Name, to direction) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passed[clientDirection{client, to}]
}

// faults are probabilities, per thousand publishes.
type faults struct{ lose, double, delay, cut int }

const maxDelay = 300 * time.Millisecond

func newWire(t testing.TB, s *testsite.Site, seed uint64, broker string) *wire {
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.ServerTLS("broker"))
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, site: s, addr: l.Addr().String(), broker: broker, random: rand.New(rand.NewPCG(seed, 3)),
		conns: map[net.Conn]bool{}, passed: map[clientDirection]int{}}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { w.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.cutConnections()
		group.Wait()
	})
	return w
}

func (w *wire) set(f faults) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = f
}

func (w *wire) cutConnections() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close()
	}
}

func (w *wire) track(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
}

func (w *wire) forget(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

// treatment is what the wire does to a publish: lose, repeat or delay it, or cut its connection. The zero value
// forwards it.
type treatment struct {
	lose, double, cut bool
	delay             time.Duration
}

func (w *wire) randomTreatment() treatment {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := treatment{lose: w.random.IntN(1000) < w.faults.lose, double: w.random.IntN(1000) < w.faults.double,
		cut: w.random.IntN(1000) < w.faults.cut}
	if w.random.IntN(1000) < w.faults.delay {
		f.delay = time.Duration(w.random.Int64N(int64(maxDelay)))
	}
	return f
}

// serve forwards one client's connection with an identity of the client's name.
func (w *wire) serve(client net.Conn) {
	defer client.Close()
	tc := client.(*tls.Conn)
	if err := tc.SetDeadline(time.Now().Add(10 * time.Second)); err != nil || tc.Handshake() != nil {
		return
	}
	_ = tc.SetDeadline(time.Time{})
	state := tc.ConnectionState()
	name, err := pki.PeerName(&state)
	if err != nil {
		return
	}
	broker, err := tls.Dial("tcp", w.broker, w.site.ClientTLS(name, "broker"))
	if err != nil {
		return
	}
	defer broker.Close()
	w.track(client)
	defer w.forget(client)
	w.track(broker)
	defer w.forget(broker)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	toBroker, toClient := &side{Conn: broker}, &side{Conn: client}
	up := &relay{w: w, way: clientDirection{name, upstream}, ctx: ctx, cancel: cancel, from: client, to: toBroker,
		back: toClient, group: &group}
	down := &relay{w: w, way: clientDirection{name, downstream}, ctx: ctx, cancel: cancel, from: broker, to: toClient,
		back: toBroker, group: &group}
	up.other, down.other = down, up
	group.Go(func() { up.run() })
	group.Go(func() { down.run() })
	<-ctx.Done()
	client.Close()
	broker.Close()
	group.Wait()
}

// side is the writing half of a connection.
type side struct {
	net.Conn
	mu sync.Mutex
}

func (s *side) send(p io.WriterTo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := p.WriteTo(s.Conn)
	return err
}

// relay forwards one direction of a connection.
type relay struct {
	w      *wire
	way    clientDirection
	ctx    context.Context
	cancel context.CancelFunc
	from   net.Conn
	to     *side // where packets go
	back   *side // where they came from
	other  *relay
	group  *sync.WaitGroup

	mu     sync.Mutex
	copies uint16
}

// firstCopyID is where the packet ids of repeated publishes begin. The wire drops the acknowledgements of repetitions.
const firstCopyID = 60000

func (r *relay) run() {
	defer r.cancel()
	for {
		p, err := packets.ReadPacket(r.from)
		if err != nil {
			return
		}
		switch c := p.Content.(type) {
		case *packets.Publish:
			if !r.publish(c) {
				return
			}
			continue
		case *packets.Puback:
			if c.PacketID >= firstCopyID {
				continue
			}
		}
		if r.to.send(p) != nil {
			return
		}
	}
}

// publish forwards a publish with a random treatment. It returns false when the connection is cut.
func (r *relay) publish(p *packets.Publish) bool {
	f := r.w.randomTreatment()
	r.w.mu.Lock()
	r.w.passed[r.way]++
	r.w.mu.Unlock()
	if f.cut {
		r.w.cut.Add(1)
		return false
	}
	if p.QoS == 0 {
		f = treatment{}
	}
	if f.lose {
		r.w.lost.Add(1)
		ack := packets.NewControlPacket(packets.PUBACK)
		ack.Content.(*packets.Puback).PacketID = p.PacketID
		return r.back.send(ack) == nil
	}
	var again *packets.Publish
	if f.double {
		r.w.doubled.Add(1)
		r.mu.Lock()
		r.copies = (r.copies + 1) % 5000
		id := firstCopyID + r.copies
		r.mu.Unlock()
		twin := *p
		twin.PacketID = id
		again = &twin
	}
	if f.delay == 0 {
		return r.to.send(p) == nil && (again == nil || r.to.send(again) == nil)
	}
	r.w.delayed.Add(1)
	r.group.Go(func() {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		select {
		case <-r.ctx.Done():
		case <-timer.C:
			if r.to.send(p) != nil || again != nil && r.to.send(again) != nil {
				r.cancel()
			}
		}
	})
	return true
}
