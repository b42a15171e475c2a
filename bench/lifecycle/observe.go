package main

import (
	"context"
	"encoding/json"
	"time"

	"atoll.dev/bus"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

// follow records the times of a watch of CLM's clusters, and of the events that an adapter receives.
func (b *bench) follow(ctx context.Context) error {
	config, err := b.region.ClientTLS(pki.ServiceName("platform"), "clm")
	if err != nil {
		return err
	}
	c, err := clmclient.New(clmclient.Options{Endpoint: b.region.URL, TLS: config})
	if err != nil {
		return err
	}
	b.region.Background(ctx, func(ctx context.Context) error {
		err := c.Follow(ctx, "clusters", remote.WatchOptions{}, b.handleEvent)
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	if config, err = b.region.ClientTLS(pki.ServiceName("adapter"), "broker"); err != nil {
		return err
	}
	listener := bus.NewClient(bus.ClientOptions{
		Addr: b.region.Broker, TLS: config, ClientID: "adapter-bench", Subscriptions: []string{
			bus.EventFilter("bench", "clusters")},
		Handler: func(_ context.Context, m bus.Message) {
			defer m.Ack()
			var e struct{ ID string }
			if json.Unmarshal(m.Event.Data, &e) == nil {
				b.recordTime(b.eventAt, e.ID)
			}
		},
	})
	b.region.Background(ctx, listener.Run)
	return await(ctx, func() error { return listener.Check(ctx) })
}

// handleEvent records when a cluster is reconciled or removed.
func (b *bench) handleEvent(e remote.Event) error {
	var r resource
	switch e.Type {
	case rest.Added, rest.Modified, rest.Deleted:
		if err := json.Unmarshal(e.Object, &r); err != nil {
			return err
		}
	}
	switch {
	case e.Type == rest.Deleted:
		b.recordTime(b.removedAt, r.ID)
	case r.Reconciled():
		b.recordTime(b.reconciledAt, r.ID)
	}
	return nil
}

// recordTime sets the time of a cluster, unless it has one.
func (b *bench) recordTime(in map[string]time.Time, id string) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if in[id].IsZero() {
		in[id] = now
	}
}

// durations returns the time from one step to another, of the clusters that have both.
func (b *bench) durations(ids []string, from, to map[string]time.Time) []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	var took []time.Duration
	for _, id := range ids {
		if !to[id].IsZero() {
			took = append(took, to[id].Sub(from[id]))
		}
	}
	return took
}
