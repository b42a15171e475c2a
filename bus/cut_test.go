package bus

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/quick"
)

// wirecutter forwards connections to an address until cut is called. Then it drops all
// data of both directions and closes no connection, as when a cable is pulled.
type wirecutter struct {
	addr string
	to   string

	mu    sync.Mutex
	whole chan struct{} // closed while the wire is whole
	conns []net.Conn
}

func newWirecutter(t testing.TB, to string) *wirecutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wirecutter{addr: l.Addr().String(), to: to, whole: make(chan struct{})}
	close(w.whole)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", w.to)
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, in, out)
			w.mu.Unlock()
			all.Go(func() { w.carry(in, out) })
			all.Go(func() { w.carry(out, in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.repair()
		w.mu.Lock()
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		all.Wait()
	})
	return w
}

// carry copies; while the wire is cut, read bytes wait.
func (w *wirecutter) carry(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		w.mu.Lock()
		whole := w.whole
		w.mu.Unlock()
		<-whole
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (w *wirecutter) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = make(chan struct{})
}

func (w *wirecutter) repair() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.whole:
	default:
		close(w.whole)
	}
}

// When a connection drops all packets, both ends notice within the keep-alive: publishes
// in flight fail, and the client connects, subscribes and calls OnConnected again.
func TestI6AConnectionThatDropsAllPackets(t *testing.T) {
	quick.LeavesOut(t, "waits for a keep-alive")
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		wire := newWirecutter(t, b.addr)
		up, down := make(chan struct{}, 10), make(chan struct{}, 10)
		got := make(chan string, 10)
		config := b.ca.client(t, "c1")
		agent := NewClient(ClientOptions{Addr: wire.addr, TLS: config, ClientID: agentClientID("c1"),
			KeepAlive: 3 * time.Second, DialTimeout: 5 * time.Second, // a busy machine pauses for less
			MaxBackoff: 200 * time.Millisecond, Subscriptions: []string{sourceTopic("c1")},
			Handler: func(_ context.Context, m Message) { m.Ack(); got <- m.Event.ID },
			OnConnected: func(ctx context.Context) {
				up <- struct{}{}
				<-ctx.Done()
				down <- struct{}{}
			}})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); agent.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		receive(t, up)
		if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("before")); err != nil {
			t.Fatal(err)
		}
		if id := receive(t, got); id != "before" {
			t.Fatalf("got %s", id)
		}

		wire.cut()
		begun := time.Now()
		if err := agent.Publish(t.Context(), agentTopic("c1"), testEvent("lost")); !errors.Is(err, ErrDisconnected) {
			t.Errorf("a publish into the cut: %v", err)
		}
		receive(t, down)
		t.Logf("the client noticed the cut after %s", time.Since(begun))
		if agent.Connected() {
			t.Error("the client calls itself connected")
		}
		wire.repair()
		receive(t, up)
		if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("after")); err != nil {
			t.Fatal(err)
		}
		if id := receive(t, got); id != "after" {
			t.Errorf("got %s", id)
		}
		if err := agent.Publish(t.Context(), agentTopic("c1"), testEvent("x")); err != nil {
			t.Error(err)
		}
	})
}
