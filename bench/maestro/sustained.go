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
	total := int(duration.Seconds() * float64(*steady))
	l := &steadyLoad{bed: b, total: total, sequence: time.Now().UnixMilli() << 22,
		held: make(map[string]int64, total), want: make(map[string]int64, total),
		began: make(map[string]time.Time, *steady)}
	for i := range *consumers {
		name := bed.Consumer(i)
		if _, err := b.Subscriber(ctx, name, func(c *bus.Client, e bus.Event) { l.receive(ctx, name, c, e) }); err != nil {
			return nil, nil, err
		}
	}
	start := time.Now()
	l.publish(ctx, start)
	accepted := time.Since(start)
	if l.failed > 0 {
		return nil, nil, fmt.Errorf("%d of %d events were refused: %w", l.failed, total, l.first)
	}
	if err := bed.Await(ctx, 50*time.Millisecond, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return compareGenerations(l.want, l.held)
	}); err != nil {
		return nil, nil, err
	}
	delivered := time.Since(start)
	if err := bed.Await(ctx, 100*time.Millisecond, func() error { return checkAcknowledged(ctx, b, l.want) }); err != nil {
		return nil, nil, err
	}
	figures = map[string]any{
		"accepted_per_second": perSecond(total, accepted), "pace_late_max_ms": ms(l.late),
		"delivery_behind_accept_ms": ms(delivered - accepted),
		"works":                     len(l.want), "lost": 0, "unacknowledged": 0,
		"repeated": l.messages.Load() - int64(total),
	}
	report.Percentiles(figures, "publish_to_agent", l.took)
	return map[string]any{"seconds": duration.Seconds(), "events_per_second": *steady, "events": total,
		"manifest_bytes": *size, "consumers": *consumers}, figures, nil
}

// steadyLoad are the events of sustained, with the agents that receive them.
type steadyLoad struct {
	bed      *bed.Bed
	total    int
	sequence int64 // of the first status

	statuses, messages atomic.Int64 // sent and received by the agents

	mu         sync.Mutex
	held, want map[string]int64     // generations of works: of the agents, and that the server has accepted
	began      map[string]time.Time // when an event was published, by work and generation
	took       []time.Duration      // from there until an agent had it
	late       time.Duration        // at most, behind the pace
	failed     int                  // events that were refused
	first      error
}

// receive is how the agent of a consumer handles a message: it reports each new generation of a work as applied.
func (l *steadyLoad) receive(ctx context.Context, consumer string, c *bus.Client, e bus.Event) {
	id := e.Extensions[work.ExtResourceID]
	if e.Type == work.StatusResync || id == "" {
		return
	}
	l.messages.Add(1)
	generation, err := strconv.ParseInt(e.Extensions[work.ExtResourceVersion], 10, 64)
	l.mu.Lock()
	if err != nil || generation <= l.held[id] {
		l.mu.Unlock()
		return
	}
	l.held[id] = generation
	if at, ok := l.began[id+e.Extensions[work.ExtResourceVersion]]; ok {
		l.took = append(l.took, time.Since(at))
		delete(l.began, id+e.Extensions[work.ExtResourceVersion])
	}
	l.mu.Unlock()
	_ = c.PublishAsync(ctx, bed.AgentTopic(consumer), statusOf(consumer, e, l.sequence+l.statuses.Add(1)), func(error) {})
}

// event returns event k. It creates work k/2, or changes the work that was created changeAfter seconds before.
func (l *steadyLoad) event(k int) (id, consumer, kind string, generation int) {
	const changeAfter = 2 // seconds after its creation a work is changed
	n, before := k/2, k/2-changeAfter**steady/2
	if k%2 == 1 && before >= 0 {
		return bed.ID(before), consumerOf(before), work.SpecUpdate, 2
	}
	if k%2 == 1 {
		n = l.total + k // no work is old enough: event k creates another one
	}
	return bed.ID(n), consumerOf(n), work.SpecCreate, 1
}

// publish publishes all events, each at its time after start, by -concurrency*4 goroutines. It returns when the server
// has answered all.
func (l *steadyLoad) publish(ctx context.Context, start time.Time) {
	due := func(k int) time.Time { return start.Add(time.Duration(k) * time.Second / time.Duration(*steady)) }
	queue := make(chan int, l.total)
	go func() {
		defer close(queue)
		for k := range l.total {
			if ahead := time.Until(due(k)); ahead > 0 {
				<-time.After(ahead)
			}
			queue <- k
		}
	}()
	var group sync.WaitGroup
	for range 4 * *concurrency {
		group.Go(func() {
			for k := range queue {
				l.publishEvent(ctx, k, due(k))
			}
		})
	}
	group.Wait()
}

// publishEvent publishes event k, which was due at a time.
func (l *steadyLoad) publishEvent(ctx context.Context, k int, due time.Time) {
	id, consumer, kind, generation := l.event(k)
	e := l.bed.Spec(kind, consumer, id, *size)
	l.mu.Lock()
	l.began[fmt.Sprint(id, generation)] = time.Now()
	l.late = max(l.late, time.Since(due))
	l.mu.Unlock()
	err := l.bed.Publish(ctx, e)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.first = errors.Join(l.first, err)
		l.failed++
		return
	}
	l.want[id] = max(l.want[id], int64(generation))
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
