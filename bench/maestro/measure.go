package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/bus"
)

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// deliver creates works as fast as a few publishers can, and counts the works that arrive at MQTT
// subscribers, which send no statuses.
func deliver(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(*consumers); err != nil {
		return nil, nil, err
	}
	var arrived atomic.Int64
	done := make(chan time.Time, 1)
	seen := &set{}
	for i := range *consumers {
		if _, err := b.Subscriber(ctx, bed.Consumer(i), func(_ *bus.Client, e bus.Event) {
			if e.Type == work.SpecCreate && seen.add(e.Extensions[work.ExtResourceID]) && arrived.Add(1) == int64(
				*works) {
				done <- time.Now()
			}
		}); err != nil {
			return nil, nil, err
		}
	}
	specs := make([]*cloudevents.CloudEvent, *works)
	for i := range specs {
		specs[i] = b.Spec(work.SpecCreate, consumerOf(i), bed.ID(i), *size)
	}
	start := time.Now()
	if err := bed.Many(*works, *concurrency, func(i int) error { return b.Publish(ctx, specs[i]) }); err != nil {
		return nil, nil, err
	}
	accepted := time.Since(start)
	select {
	case end := <-done:
		took := end.Sub(start)
		return map[string]any{"works": *works, "manifest_bytes": *size, "consumers": *consumers,
				"publishers": *concurrency},
			map[string]any{"accepted_per_second": perSecond(*works, accepted), "delivered_per_second": perSecond(*works,
				took), "delivery_behind_accept_ms": ms(took - accepted)}, nil
	case <-time.After(2 * time.Minute):
		return nil, nil, fmt.Errorf("%d of %d works were delivered", arrived.Load(), *works)
	}
}

// consumerOf is the consumer of the i-th work.
func consumerOf(i int) string { return bed.Consumer(i % *consumers) }

// statusOf returns the status of an agent that has applied, or deleted, a work at once.
func statusOf(consumer string, e bus.Event, sequence int64) bus.Event {
	x := e.Extensions
	status := bed.Status
	if x[work.ExtDeletionTimestamp] != "" {
		status = bed.DeletedStatus
	}
	return status(consumer, x[work.ExtResourceID], x[work.ExtResourceVersion], uuid.NewString(), sequence)
}

func perSecond(n int, d time.Duration) float64 { return float64(int(float64(n)/d.Seconds()*10)) / 10 }

// set remembers strings.
type set struct {
	mu sync.Mutex
	in map[string]bool
}

func (s *set) add(v string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in[v] {
		return false
	}
	if s.in == nil {
		s.in = map[string]bool{}
	}
	s.in[v] = true
	return true
}

// ingest publishes statuses of agents at the offered rate, and counts those that a subscribed source
// receives.
func ingest(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(*consumers); err != nil {
		return nil, nil, err
	}
	if err := bed.Many(*works, *concurrency, func(i int) error {
		return b.Publish(ctx, b.Spec(work.SpecCreate, consumerOf(i), bed.ID(i), *size))
	}); err != nil {
		return nil, nil, err
	}
	seen := &set{}
	done := make(chan time.Time, 1)
	var arrived atomic.Int64
	if err := b.Stream(ctx, func(id string, _ *cloudevents.CloudEvent) {
		if seen.add(id) && arrived.Add(1) == int64(*works) {
			done <- time.Now()
		}
	}); err != nil {
		return nil, nil, err
	}
	clients := make([]*bus.Client, *consumers)
	for i := range clients {
		if clients[i], err = b.Subscriber(ctx, bed.Consumer(i), func(*bus.Client, bus.Event) {}); err != nil {
			return nil, nil, err
		}
	}
	sequence := time.Now().UnixMilli() << 22
	start := time.Now()
	for i := range *works {
		// At most the offered number of statuses a second, without bursts.
		if ahead := time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(*reports))); ahead > 0 {
			<-time.After(ahead)
		}
		status := bed.Status(consumerOf(i), bed.ID(i), "1", uuid.NewString(), sequence+int64(i))
		if err := clients[i%*consumers].PublishAsync(ctx, bed.AgentTopic(consumerOf(i)), status,
			func(error) {}); err != nil {
			return nil, nil, err
		}
	}
	published := time.Since(start)
	select {
	case end := <-done:
		return map[string]any{"statuses": *works, "consumers": *consumers, "offered_per_second": *reports},
			map[string]any{"published_per_second": perSecond(*works, published), "ingested_per_second": perSecond(
				*works, end.Sub(start))}, nil
	case <-time.After(2 * time.Minute):
		return nil, nil, fmt.Errorf("%d of %d statuses arrived", arrived.Load(), *works)
	}
}

// update changes works from many clients at once.
func update(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(*consumers); err != nil {
		return nil, nil, err
	}
	n := min(*works, 1000)
	if err := bed.Many(n, *concurrency, func(i int) error {
		return b.Publish(ctx, b.Spec(work.SpecCreate, consumerOf(i), bed.ID(i), *size))
	}); err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var took []time.Duration
	start := time.Now()
	if err := bed.Many(*works, *updaters, func(i int) error {
		e := b.Spec(work.SpecUpdate, consumerOf(i%n), bed.ID(i%n), *size)
		begin := time.Now()
		err := b.Publish(ctx, e)
		mu.Lock()
		took = append(took, time.Since(begin))
		mu.Unlock()
		return err
	}); err != nil {
		return nil, nil, err
	}
	figures = map[string]any{"updates_per_second": perSecond(*works, time.Since(start)), "failed": 0}
	report.Percentiles(figures, "update", took)
	return map[string]any{"updates": *works, "updaters": *updaters, "bundles": n}, figures, nil
}

// latency creates works at a steady pace, without waiting for their statuses, and measures the time
// until their source receives the condition Applied.
func latency(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(1); err != nil {
		return nil, nil, err
	}
	sequence := time.Now().UnixMilli() << 22
	var next atomic.Int64
	if _, err := b.Subscriber(ctx, "mc0", func(c *bus.Client, e bus.Event) {
		if e.Type == work.SpecCreate {
			_ = c.PublishAsync(ctx, bed.AgentTopic("mc0"), statusOf("mc0", e, sequence+next.Add(1)), func(error) {})
		}
	}); err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	began := map[string]time.Time{}
	var took []time.Duration
	var all sync.WaitGroup
	all.Add(*count)
	if err := b.Stream(ctx, func(id string, e *cloudevents.CloudEvent) {
		var status work.Status
		if json.Unmarshal(e.GetBinaryData(), &status) != nil || len(status.Conditions) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if start, ok := began[id]; ok {
			took = append(took, time.Since(start))
			delete(began, id)
			all.Done()
		}
	}); err != nil {
		return nil, nil, err
	}
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	var publishing sync.WaitGroup
	failed := make(chan error, *count)
	for i := range *count {
		<-tick.C
		publishing.Go(func() {
			mu.Lock()
			began[bed.ID(i)] = time.Now()
			mu.Unlock()
			if err := b.Publish(ctx, b.Spec(work.SpecCreate, "mc0", bed.ID(i), *size)); err != nil {
				failed <- err
				all.Done()
			}
		})
	}
	publishing.Wait()
	all.Wait()
	if len(failed) > 0 {
		return nil, nil, <-failed
	}
	figures = map[string]any{}
	report.Percentiles(figures, "create_to_status", took)
	return map[string]any{"works": *count, "works_per_second": *rate, "manifest_bytes": *size}, figures, nil
}
