package maestro

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// statusAsks asks agents for the statuses of works that were delivered again.
// An agent that has such a work already ignores the delivery, so its lost
// status is recovered by a status resync request only. A slow agent that is
// still applying its works gains nothing by a request: so each agent is asked
// at most once in askPause, about all its works at once, and only about those
// that are not acknowledged then.
type statusAsks struct {
	s     *Server
	woken chan struct{}

	mu      sync.Mutex
	waiting map[string]map[string]struct{} // consumer -> ids of works that were delivered again
	last    map[string]time.Time           // when a consumer was asked, during askPause
}

const (
	askPause   = 10 * time.Second
	askTimeout = 5 * time.Second // of one consumer's request
	askers     = 4               // consumers that are asked at the same time
)

func newStatusAsks(s *Server) *statusAsks {
	return &statusAsks{s: s, woken: make(chan struct{}, 1), waiting: map[string]map[string]struct{}{},
		last: map[string]time.Time{}}
}

// add notes that works were delivered to a consumer again.
func (a *statusAsks) add(consumer string, ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set := a.waiting[consumer]
	if set == nil {
		set = map[string]struct{}{}
		a.waiting[consumer] = set
		select {
		case a.woken <- struct{}{}:
		default:
		}
	}
	for _, id := range ids {
		set[id] = struct{}{}
	}
}

// take returns the works of the consumers that may be asked now, and when the
// next consumer may be asked: the zero time when none waits.
func (a *statusAsks) take(now time.Time) (due map[string][]string, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for consumer, at := range a.last {
		if now.Sub(at) >= askPause {
			delete(a.last, consumer)
		}
	}
	due = map[string][]string{}
	for consumer, set := range a.waiting {
		if at, asked := a.last[consumer]; asked {
			if at = at.Add(askPause); next.IsZero() || at.Before(next) {
				next = at
			}
			continue
		}
		for id := range set {
			due[consumer] = append(due[consumer], id)
		}
		delete(a.waiting, consumer)
		a.last[consumer] = now
	}
	return due, next
}

func (a *statusAsks) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, next := a.take(time.Now())
		var group errgroup.Group
		group.SetLimit(askers)
		for consumer, ids := range due {
			group.Go(func() error {
				a.ask(ctx, consumer, ids)
				return nil
			})
		}
		group.Wait()
		if next.IsZero() {
			next = time.Now().Add(time.Hour)
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return nil
		case <-a.woken:
		case <-timer.C:
		}
	}
}

// ask asks one agent about those of the works that it has not acknowledged.
// A request that fails is made good by the next delivery of the works.
func (a *statusAsks) ask(ctx context.Context, consumer string, ids []string) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	ids, err := a.s.ledger.Unacknowledged(ctx, consumer, ids)
	if err == nil && len(ids) > 0 { // without ids all statuses would be asked for
		err = a.s.askConsumer(ctx, consumer, ids)
	}
	if err != nil {
		a.s.log.LogAttrs(ctx, slog.LevelDebug, "statuses not asked for", slog.String("consumer", consumer),
			slog.Any("error", err))
	}
}
