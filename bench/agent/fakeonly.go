package main

import (
	"context"
	"os"
	"time"

	"atoll.dev/bench/report"
)

// On the fake API server these measurements show the time that the agent itself needs.

// measureDeletions deletes works at the rate of measureLatency.
func (b *bench) measureDeletions(ctx context.Context) error {
	n := min(b.created, 5**rate)
	params := b.params(map[string]any{"rate": *rate, "deletions": n})
	took, err := b.deleteLatest(ctx, n, *rate)
	if err != nil {
		return err
	}
	figures := map[string]any{}
	report.Percentiles(figures, "delete_to_gone", took)
	return report.Line(os.Stdout, "agent/deletions", params, figures)
}

// deleteLatest deletes the n latest works, and returns the time of each.
func (b *bench) deleteLatest(ctx context.Context, n, rate int) ([]time.Duration, error) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var ids []string
	for range n {
		<-tick.C
		id := b.takeLatest()
		ids = append(ids, id)
		b.server.delete(ctx, id)
	}
	return b.server.await(ctx, ids)
}

// measureDeletionsAfterCreations publishes -works new works at once and then deletes older works, which wait behind
// them.
func (b *bench) measureDeletionsAfterCreations(ctx context.Context) error {
	n := min(b.created, 50)
	params := b.params(map[string]any{"works": *works, "deletions": n})
	deleted := make([]string, 0, n)
	for range n {
		deleted = append(deleted, b.takeLatest())
	}
	var ids []string
	for range *works {
		id := b.newID()
		ids = append(ids, id)
		b.server.apply(ctx, id, b.newBundle(id))
	}
	for _, id := range deleted {
		b.server.delete(ctx, id)
	}
	took, err := b.server.await(ctx, deleted)
	if err != nil {
		return err
	}
	figures := map[string]any{}
	report.Percentiles(figures, "delete_to_gone", took)
	if took, err = b.server.await(ctx, ids); err != nil {
		return err
	}
	report.Percentiles(figures, "publish_to_applied", took)
	return report.Line(os.Stdout, "agent/flood", params, figures)
}

// measureLostDisk starts an agent without its data directory, with all works in the cluster.
func (b *bench) measureLostDisk(ctx context.Context) error {
	params := b.params(nil)
	b.stopAgent()
	if err := os.RemoveAll(b.options.DataDir); err != nil {
		return err
	}
	ids := b.server.awaitReportsOfAll()
	begun := time.Now()
	if err := b.startAgent(ctx); err != nil {
		return err
	}
	if _, err := b.server.await(ctx, ids); err != nil {
		return err
	}
	figures := map[string]any{"works": len(ids), "all_reported_ms": time.Since(begun).Milliseconds()}
	return report.Line(os.Stdout, "agent/cold", params, figures)
}

// measureIdle counts the agent's requests to the API server while no work changes.
func (b *bench) measureIdle(context.Context) error {
	if b.fake == nil {
		return nil
	}
	const settle, window = 3 * time.Second, 20 * time.Second
	time.Sleep(settle)
	before := b.fake.requests.Load()
	time.Sleep(window)
	figures := map[string]any{"requests_per_second": float64(b.fake.requests.Load()-before) / window.Seconds()}
	return report.Line(os.Stdout, "agent/quiet", b.params(nil), figures)
}

// takeLatest removes the latest work from existing and returns its id.
func (b *bench) takeLatest() string {
	id := b.existing[len(b.existing)-1]
	b.existing = b.existing[:len(b.existing)-1]
	return id
}

// awaitReportsOfAll marks all works as unreported, and returns their ids for await.
func (s *server) awaitReportsOfAll() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, o := range s.works {
		if !o.deleting {
			o.published, o.took, o.done = time.Now(), 0, make(chan struct{})
			ids = append(ids, id)
		}
	}
	return ids
}
