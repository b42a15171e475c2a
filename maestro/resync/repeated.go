package resync

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// repeatedWorks has the works that were delivered again, whose statuses runRepeated asks
// for. An agent that has such a work already ignores the delivery, so only a status resync
// request recovers a lost status. A request does not help a slow agent that is still
// applying its works. So an agent gets at most one request in AskPause, for all its works
// that are unacknowledged then.
type repeatedWorks struct {
	woken chan struct{}

	mu      sync.Mutex
	waiting map[string]map[string]struct{} // consumer -> ids of works that were delivered again
	last    map[string]time.Time           // time of the last request to a consumer; removed after AskPause
}

const (
	AskPause   = 10 * time.Second // least time between two requests to one agent
	askTimeout = 5 * time.Second  // for one consumer's request
	askers     = 4                // most requests at the same time
)

func newRepeatedWorks() *repeatedWorks {
	return &repeatedWorks{woken: make(chan struct{}, 1), waiting: map[string]map[string]struct{}{},
		last: map[string]time.Time{}}
}

// add records that works were delivered to a consumer again.
func (a *repeatedWorks) add(consumer string, ids []string) {
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

// take removes and returns the works of the consumers that may get a request now, and
// the time of the next request; the zero time when no consumer waits.
func (a *repeatedWorks) take(now time.Time) (due map[string][]string, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for consumer, at := range a.last {
		if now.Sub(at) >= AskPause {
			delete(a.last, consumer)
		}
	}
	due = map[string][]string{}
	for consumer, set := range a.waiting {
		if at, asked := a.last[consumer]; asked {
			if at = at.Add(AskPause); next.IsZero() || at.Before(next) {
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

// runRepeated sends the due requests until ctx ends.
func (c *Comparer) runRepeated(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, next := c.repeated.take(time.Now())
		var group errgroup.Group
		group.SetLimit(askers)
		for consumer, ids := range due {
			group.Go(func() error {
				c.askUnacknowledged(ctx, consumer, ids)
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
		case <-c.repeated.woken:
		case <-timer.C:
		}
	}
}

// askUnacknowledged asks one agent for the statuses of those works that it has not acknowledged.
// After a failed request, the next delivery of the works causes another one.
func (c *Comparer) askUnacknowledged(ctx context.Context, consumer string, ids []string) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	ids, err := c.o.Ledger.Unacknowledged(ctx, consumer, ids)
	if err == nil && len(ids) > 0 { // a request without ids asks for all statuses
		err = c.askConsumer(ctx, consumer, ids)
	}
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "statuses not asked for", slog.String("consumer", consumer),
			slog.Any("error", err))
	}
}
