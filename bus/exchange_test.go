package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"atoll.dev/pki"
)

// An exchange is an agent that sends events to a service, by the broker of a test region. Both renew their
// certificates.
type exchange struct {
	maestro, agent *pki.Identity
	client         *Client       // the agent's
	connects       chan struct{} // gets a value for each connection of the agent after the first
	sent           int           // events

	mu       sync.Mutex
	received map[string]bool // by the event's ID
}

func newExchange(t *testing.T, e *estate) *exchange {
	t.Helper()
	x := &exchange{maestro: e.identity(t, "system:maestro", t.TempDir()), agent: e.identity(t, "c1", t.TempDir()),
		connects: make(chan struct{}, 1000), received: map[string]bool{}}
	background(t, x.maestro.Run)
	background(t, x.agent.Run)
	ready := make(chan struct{}, 1000)
	server := NewClient(ClientOptions{Addr: e.addr, TLS: x.maestro.ClientTLS("broker"), ClientID: "maestro",
		Subscriptions: []string{agentTopic(AllConsumers)}, OnConnected: func(context.Context) { ready <- struct{}{} },
		Handler: func(_ context.Context, m Message) {
			x.mu.Lock()
			x.received[m.Event.ID] = true
			x.mu.Unlock()
			m.Ack()
		}})
	background(t, server.Run)
	receive(t, ready)
	x.client = NewClient(ClientOptions{Addr: e.addr, TLS: x.agent.ClientTLS("broker"), ClientID: agentClientID("c1"),
		OnConnected: func(context.Context) { x.connects <- struct{}{} }})
	background(t, x.client.Run)
	receive(t, x.connects)
	return x
}

// deliver sends the next event and returns how long it took until the service had it. It repeats the publish until
// then, as Maestro and the agent do by resync.
func (x *exchange) deliver(t *testing.T) time.Duration {
	t.Helper()
	id, begun := fmt.Sprint(x.sent), time.Now()
	x.sent++
	for known := false; !known; {
		err := x.client.Publish(t.Context(), agentTopic("c1"), testEvent(id))
		if err != nil && !errors.Is(err, ErrDisconnected) && !errors.Is(err, ErrUnacknowledged) {
			t.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
		x.mu.Lock()
		known = x.received[id]
		x.mu.Unlock()
		if time.Since(begun) > hangLimit {
			t.Fatalf("message %s is not received", id)
		}
	}
	return time.Since(begun)
}
