package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"atoll.dev/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestEventsTravelInBothDirections(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		toServer, toAgent := make(chan Message, 1), make(chan Message, 1)
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro",
			Subscriptions: []string{Topic{Source: "maestro", Consumer: AllConsumers,
				Kind: AgentEvents}.Share().Filter()},
			Handler: func(_ context.Context, m Message) { m.Ack(); toServer <- m }})
		agent := b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")},
			Handler: func(_ context.Context, m Message) { m.Ack(); toAgent <- m }})
		if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("1")); err != nil {
			t.Fatal(err)
		}
		if m := receive(t, toAgent); m.Event.ID != "1" || m.Topic != sourceTopic("c1") ||
			string(m.Event.Data) != `{"a":1}` {
			t.Errorf("the agent got %+v", m)
		}
		if err := agent.Publish(t.Context(), agentTopic("c1"), testEvent("2")); err != nil {
			t.Fatal(err)
		}
		m := receive(t, toServer)
		if v, ok := m.Event.Extensions["originalsource"]; m.Event.ID != "2" || !ok || v != "" {
			t.Errorf("the server got %+v", m)
		}
	})
}

func TestThousandsOfEventsInFlightArriveInOrder(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		const n = 5000
		got := make(chan string, n)
		b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, Handler: func(_ context.Context,
			m Message) {
			go m.Ack() // by anybody, in any order
			got <- m.Event.ID
		}})
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		acks := make(chan error, n)
		for i := range n {
			if err := server.PublishAsync(t.Context(), sourceTopic("c1"), testEvent(fmt.Sprint(i)),
				func(err error) { acks <- err }); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			if id := receive(t, got); id != fmt.Sprint(i) {
				t.Fatalf("message %d is %s", i, id)
			}
			if err := receive(t, acks); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Both directions use packet ids at once here, which is where the broker's
// library loses count.
func TestTrafficInBothDirectionsDoesNotStall(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		const n = 1000
		var left sync.WaitGroup
		left.Add(2 * n)
		handle := func(_ context.Context, m Message) { m.Ack(); left.Done() }
		agent := b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, Handler: handle})
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro", Subscriptions: []string{
			Topic{Source: "maestro", Consumer: AllConsumers, Kind: AgentEvents}.Share().Filter()}, Handler: handle})
		send := func(c *Client, topic string) {
			for i := range n {
				if err := c.PublishAsync(t.Context(), topic, testEvent(fmt.Sprint(i)), func(error) {}); err != nil {
					t.Error(err)
				}
			}
		}
		go send(agent, agentTopic("c1"))
		go send(server, sourceTopic("c1"))
		done := make(chan struct{})
		go func() { left.Wait(); close(done) }()
		receive(t, done)
	})
}

func TestAcknowledgementsKeepTheOrderOfArrival(t *testing.T) {
	out := make(chan *packets.ControlPacket, 10)
	here, there := net.Pipe()
	defer there.Close()
	c := &connection{conn: here, out: out, closed: make(chan struct{}), inflight: newInflight(time.Second)}
	in := []*inbound{{id: 5}, {id: 6}, {id: 7}}
	c.inbox = append(c.inbox, in...)
	c.ack(in[2])
	c.ack(in[1])
	if len(out) != 0 {
		t.Fatal("acknowledged before the first was")
	}
	c.ack(in[0])
	for _, want := range []uint16{5, 6, 7} {
		if got := (<-out).Content.(*packets.Puback).PacketID; got != want {
			t.Errorf("acknowledged %d, want %d", got, want)
		}
	}
	c.fail()
	in[0].acked = false
	c.ack(in[0]) // does nothing
}

func TestI6AClientReconnectsAndCallsOnConnected(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		connected := make(chan struct{}, 10)
		got := make(chan Message, 10)
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		agent := b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")},
			OnConnected: func(context.Context) { connected <- struct{}{} },
			Handler:     func(_ context.Context, m Message) { m.Ack(); got <- m }})
		receive(t, connected)
		b.stop()
		for agent.Connected() || server.Connected() {
			if err := agent.Publish(t.Context(), agentTopic("c1"), testEvent("x")); err != nil &&
				!errors.Is(err, ErrDisconnected) {
				t.Fatalf("publish to a broker that is gone: %v", err)
			}
		}
		if err := agent.Check(t.Context()); err == nil {
			t.Error("a client without a broker is ready")
		}
		b.start()
		receive(t, connected)
		for { // the server may come back later
			if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("after")); err == nil {
				break
			} else if !errors.Is(err, ErrDisconnected) {
				t.Fatal(err)
			}
		}
		if m := receive(t, got); m.Event.ID != "after" {
			t.Errorf("got %+v", m)
		}
	})
}

func TestPublishesInFlightFailWithTheConnection(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		results := make(chan error, 100)
		sent := 0
		go b.stop()
		for {
			if err := server.PublishAsync(t.Context(), sourceTopic("c1"), testEvent("x"),
				func(err error) { results <- err }); err != nil {
				if !errors.Is(err, ErrDisconnected) {
					t.Fatal(err)
				}
				break
			}
			sent++
			if len(results) > 50 {
				for len(results) > 0 {
					<-results
					sent--
				}
			}
		}
		for range sent { // each gets exactly one answer
			if err := receive(t, results); err != nil && !errors.Is(err, ErrDisconnected) {
				t.Error(err)
			}
		}
	})
}

func TestATooLargeEventIsRefusedBeforeItIsSent(t *testing.T) {
	eachBroker(t, BrokerOptions{MaxPacket: 10_000}, func(t *testing.T, b *testBroker) {
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		e := testEvent("large")
		e.Data = make([]byte, 10_000)
		if err := server.Publish(t.Context(), sourceTopic("c1"), e); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a large event: %v", err)
		}
		if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("small")); err != nil {
			t.Errorf("and then a small one: %v", err)
		}
	})
}

// A message that one subscriber does not get must show: it is disconnected.
func TestI6ASlowSubscriberIsDisconnectedNotSkipped(t *testing.T) {
	b := startBroker(t, BrokerOptions{MaxPending: 1 << 20})
	connected := make(chan struct{}, 100)
	blocked, release := make(chan struct{}, 1), make(chan struct{})
	b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, OnConnected: func(context.Context) {
		connected <- struct{}{}
	},
		Handler: func(ctx context.Context, m Message) {
			select {
			case blocked <- struct{}{}:
			default:
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
			m.Ack()
		}})
	receive(t, connected)
	server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
	e := testEvent("big")
	e.Data = make([]byte, 256<<10)
	for range 200 { // more than the sockets' buffers and its queue hold
		if err := server.Publish(t.Context(), sourceTopic("c1"), e); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, blocked)
	close(release)
	receive(t, connected) // it was dropped, came back, and will resync
}

func BenchmarkPipelined(bench *testing.B) {
	b := startBroker(bench, BrokerOptions{})
	got := make(chan struct{}, 1024)
	b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, Handler: func(_ context.Context,
		m Message) {
		m.Ack()
		got <- struct{}{}
	}})
	server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
	e := testEvent("bench")
	e.Data = make([]byte, 512)
	ahead := make(chan struct{}, 1000) // as Maestro does: no more than a consumer can take
	bench.ResetTimer()
	go func() {
		for range bench.N {
			ahead <- struct{}{}
			if err := server.PublishAsync(bench.Context(), sourceTopic("c1"), e, func(error) {}); err != nil {
				bench.Error(err)
				return
			}
		}
	}()
	for range bench.N {
		<-got
		<-ahead
	}
}
