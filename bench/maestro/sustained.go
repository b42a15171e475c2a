package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/bus"
)

// sustained sends works at a steady pace; every second event changes an earlier work. Then it checks
// that each agent has each of its works at the last generation, and that the server's ledger has all
// of them acknowledged.
func sustained(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(*consumers); err != nil {
		return nil, nil, err
	}
	const changeAfter = 2 // seconds after its creation a work is changed
	total := int(duration.Seconds() * float64(*steady))
	var mu sync.Mutex
	held := make(map[string]int64, total) // by the agents
	began := make(map[string]time.Time, *steady)
	var took []time.Duration
	sequence := time.Now().UnixMilli() << 22
	var next, messages atomic.Int64
	for i := range *consumers {
		name := bed.Consumer(i)
		if _, err := b.Subscriber(ctx, name, func(c *bus.Client, e bus.Event) {
			id := e.Extensions[work.ExtResourceID]
			if e.Type == work.StatusResync || id == "" {
				return
			}
			messages.Add(1)
			generation, err := strconv.ParseInt(e.Extensions[work.ExtResourceVersion], 10, 64)
			mu.Lock()
			if err != nil || generation <= held[id] {
				mu.Unlock()
				return
			}
			held[id] = generation
			if at, ok := began[id+e.Extensions[work.ExtResourceVersion]]; ok {
				took = append(took, time.Since(at))
				delete(began, id+e.Extensions[work.ExtResourceVersion])
			}
			mu.Unlock()
			_ = c.PublishAsync(ctx, bed.AgentTopic(name), statusOf(name, e, sequence+next.Add(1)), func(error) {})
		}); err != nil {
			return nil, nil, err
		}
	}
	// Event k creates work k/2, or changes the work that was created changeAfter seconds before.
	event := func(k int) (id, consumer, kind string, generation int) {
		n, before := k/2, k/2-changeAfter**steady/2
		if k%2 == 1 && before >= 0 {
			return bed.ID(before), consumerOf(before), work.SpecUpdate, 2
		}
		if k%2 == 1 {
			n = total + k // no work is old enough: event k creates another one
		}
		return bed.ID(n), consumerOf(n), work.SpecCreate, 1
	}
	want := make(map[string]int64, total)
	queue := make(chan int, total)
	start := time.Now()
	var late time.Duration
	go func() {
		defer close(queue)
		for k := range total {
			if ahead := time.Until(start.Add(time.Duration(k) * time.Second / time.Duration(*steady))); ahead > 0 {
				<-time.After(ahead)
			}
			queue <- k
		}
	}()
	var group sync.WaitGroup
	var failed atomic.Int64
	var first error
	for range 4 * *concurrency {
		group.Go(func() {
			for k := range queue {
				id, consumer, kind, generation := event(k)
				e := b.Spec(kind, consumer, id, *size)
				mu.Lock()
				began[fmt.Sprint(id, generation)] = time.Now()
				late = max(late, time.Since(start.Add(time.Duration(k)*time.Second/time.Duration(*steady))))
				mu.Unlock()
				if err := b.Publish(ctx, e); err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
					failed.Add(1)
					continue
				}
				mu.Lock()
				want[id] = max(want[id], int64(generation))
				mu.Unlock()
			}
		})
	}
	group.Wait()
	accepted := time.Since(start)
	if n := failed.Load(); n > 0 {
		return nil, nil, fmt.Errorf("%d of %d events were refused: %w", n, total, first)
	}
	if err := bed.Await(ctx, 50*time.Millisecond, func() error {
		mu.Lock()
		defer mu.Unlock()
		return compareGenerations(want, held)
	}); err != nil {
		return nil, nil, err
	}
	delivered := time.Since(start)
	if err := bed.Await(ctx, 100*time.Millisecond, func() error { return checkAcknowledged(ctx, b, want) }); err != nil {
		return nil, nil, err
	}
	figures = map[string]any{
		"accepted_per_second": perSecond(total, accepted), "pace_late_max_ms": ms(late),
		"delivery_behind_accept_ms": ms(delivered - accepted),
		"works":                     len(want), "lost": 0, "unacknowledged": 0, "repeated": messages.Load() -
			int64(total),
	}
	report.Percentiles(figures, "publish_to_agent", took)
	return map[string]any{"seconds": duration.Seconds(), "events_per_second": *steady, "events": total,
		"manifest_bytes": *size, "consumers": *consumers}, figures, nil
}

// compareGenerations returns an error that names the first work of another generation.
func compareGenerations(want, have map[string]int64) error {
	missing, wrong := "", 0
	for id, generation := range want {
		if have[id] != generation {
			missing = fmt.Sprintf("%s has generation %d, not %d", id, have[id], generation)
			wrong++
		}
	}
	if wrong > 0 || len(want) != len(have) {
		return fmt.Errorf("%d of %d works are wrong, %d are there: %s", wrong, len(want), len(have), missing)
	}
	return nil
}

// checkAcknowledged returns an error while the server's ledger has works that are not acknowledged.
func checkAcknowledged(ctx context.Context, b *bed.Bed, want map[string]int64) error {
	conn, err := pgx.Connect(ctx, b.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `select id, wanted, acknowledged from ledger where gone_at is null and not deleting`)
	if err != nil {
		return err
	}
	have := make(map[string]int64, len(want))
	var id string
	var wanted, acknowledged int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &wanted, &acknowledged}, func() error {
		if wanted == acknowledged {
			have[id] = wanted
		}
		return nil
	}); err != nil {
		return err
	}
	return compareGenerations(want, have)
}

// deletion deletes works that an agent holds, at a steady pace, and measures the time until a GET
// returns 404.
func deletion(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(1); err != nil {
		return nil, nil, err
	}
	sequence := time.Now().UnixMilli() << 22
	var next atomic.Int64
	if _, err := b.Subscriber(ctx, "mc0", func(c *bus.Client, e bus.Event) {
		if e.Extensions[work.ExtResourceID] != "" {
			_ = c.PublishAsync(ctx, bed.AgentTopic("mc0"), statusOf("mc0", e, sequence+next.Add(1)), func(error) {})
		}
	}); err != nil {
		return nil, nil, err
	}
	want := map[string]int64{}
	for i := range *count {
		want[bed.ID(i)] = 1
	}
	if err := bed.Many(*count, *concurrency, func(i int) error {
		return b.Publish(ctx, b.Spec(work.SpecCreate, "mc0", bed.ID(i), *size))
	}); err != nil {
		return nil, nil, err
	}
	if err := bed.Await(ctx, 20*time.Millisecond, func() error { return checkAcknowledged(ctx, b, want) }); err != nil {
		return nil, nil, err
	}
	call := func(method, id string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, method, b.URL+"/api/maestro/v1/resource-bundles/"+id, nil)
		if err != nil {
			return 0, err
		}
		resp, err := b.HTTP.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	took := make([]time.Duration, *count)
	errs := make([]error, *count)
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	var group sync.WaitGroup
	for i := range *count {
		<-tick.C
		group.Go(func() {
			begun := time.Now()
			code, err := call(http.MethodDelete, bed.ID(i))
			if err == nil && code != http.StatusNoContent {
				err = fmt.Errorf("DELETE of %s: %d", bed.ID(i), code)
			}
			if err == nil {
				err = bed.Await(ctx, 2*time.Millisecond, func() error {
					if code, err := call(http.MethodGet, bed.ID(i)); err != nil || code != http.StatusNotFound {
						return fmt.Errorf("GET of %s: %d: %w", bed.ID(i), code, err)
					}
					return nil
				})
			}
			took[i], errs[i] = time.Since(begun), err
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	figures = map[string]any{}
	report.Percentiles(figures, "delete_to_404", took)
	return map[string]any{"works": *count, "deletions_per_second": *rate, "manifest_bytes": *size}, figures, nil
}
