package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/quick"
	"atoll.dev/pki"
)

// No event is lost while the region's root is replaced under a broker, a service and an agent that run and
// connect again all the time. Their CA file is the one of the beginning, as long as they run.
func TestI7ARotationOfTheRootLosesNoEvent(t *testing.T) {
	quick.LeavesOut(t, "waits for certificates that expire")
	e := newTestRegion(t, 2*time.Second)
	maestro, agent := e.identity(t, "system:maestro", t.TempDir()), e.identity(t, "c1", t.TempDir())
	background(t, maestro.Run)
	background(t, agent.Run)
	var mu sync.Mutex
	received := map[string]bool{}
	ready := make(chan struct{}, 1000)
	server := NewClient(ClientOptions{Addr: e.addr, TLS: maestro.ClientTLS("broker"), ClientID: "maestro",
		Subscriptions: []string{agentTopic(AllConsumers)}, OnConnected: func(context.Context) { ready <- struct{}{} },
		Handler: func(_ context.Context, m Message) {
			mu.Lock()
			received[m.Event.ID] = true
			mu.Unlock()
			m.Ack()
		}})
	background(t, server.Run)
	receive(t, ready)
	client := NewClient(ClientOptions{Addr: e.addr, TLS: agent.ClientTLS("broker"), ClientID: agentClientID("c1"),
		OnConnected: func(context.Context) { ready <- struct{}{} }})
	background(t, client.Run)
	receive(t, ready)

	sent := 0
	exchange := func(d time.Duration) {
		t.Helper()
		for begun := time.Now(); time.Since(begun) < d; {
			id, from := fmt.Sprint(sent), time.Now()
			sent++
			for known := false; !known; {
				err := client.Publish(t.Context(), agentTopic("c1"), testEvent(id))
				if err != nil && !errors.Is(err, ErrDisconnected) && !errors.Is(err, ErrUnacknowledged) {
					t.Fatal(err)
				}
				<-time.After(5 * time.Millisecond)
				mu.Lock()
				known = received[id]
				mu.Unlock()
				if time.Since(from) > hangLimit {
					t.Fatalf("message %s is not received", id)
				}
			}
		}
	}
	first := e.region.Certificate()
	for name, step := range []func(pki.RotationOptions) error{e.region.PrepareRoot, e.region.CompleteRoot,
		e.region.RetireRoot} {
		for begun := time.Now(); ; exchange(100 * time.Millisecond) { // refused while it would cut somebody off
			err := step(pki.RotationOptions{})
			if err == nil {
				break
			}
			if time.Since(begun) > hangLimit {
				t.Fatalf("step %d: %v", name, err)
			}
		}
		exchange(3 * time.Second)
	}
	if e.region.Certificate().Equal(first) {
		t.Error("the root is the same")
	}
	t.Logf("%d events", sent)
}
