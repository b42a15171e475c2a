package main

import (
	"context"
	"os"
	"time"

	"atoll.dev/bench/report"
)

// These are measured beside the others, and on the fake API server alone show
// what the agent itself takes.

// deletions asks for works to go, at the rate of latency.
func (b *bench) deletions(ctx context.Context) error {
	n := min(b.made, 5**rate)
	params := b.params(map[string]any{"rate": *rate, "deletions": n})
	took, err := b.remove(ctx, n, *rate)
	if err != nil {
		return err
	}
	figures := map[string]any{}
	report.Percentiles(figures, "delete_to_gone", took)
	return report.Line(os.Stdout, "agent/deletions", params, figures)
}

// remove deletes the n works that were made last and still are.
func (b *bench) remove(ctx context.Context, n, rate int) ([]time.Duration, error) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var ids []string
	for range n {
		<-tick.C
		id := b.last()
		ids = append(ids, id)
		b.server.delete(ctx, id)
	}
	return b.server.await(ctx, ids)
}

// flood deletes works while a flood of new ones arrives all at once.
func (b *bench) flood(ctx context.Context) error {
	n := min(b.made, 50)
	params := b.params(map[string]any{"works": *works, "deletions": n})
	gone := make([]string, 0, n)
	for range n {
		gone = append(gone, b.last())
	}
	var ids []string
	for range *works {
		id := b.next()
		ids = append(ids, id)
		b.server.apply(ctx, id, b.bundle(id))
	}
	for _, id := range gone {
		b.server.delete(ctx, id)
	}
	took, err := b.server.await(ctx, gone)
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

// cold starts an agent that has lost its disk, with all works in the cluster.
func (b *bench) cold(ctx context.Context) error {
	params := b.params(nil)
	b.away1()
	if err := os.RemoveAll(b.options.DataDir); err != nil {
		return err
	}
	ids := b.server.expectAll()
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

// quiet counts what the agent asks when there is nothing to do.
func (b *bench) quiet(context.Context) error {
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

// last takes the work that was made last out of those that exist.
func (b *bench) last() string {
	id := b.names[len(b.names)-1]
	b.names = b.names[:len(b.names)-1]
	return id
}

// expectAll makes every work that is there one that has yet to be reported.
func (s *server) expectAll() []string {
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
