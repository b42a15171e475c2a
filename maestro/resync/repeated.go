package resync

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
)

// repeatedWorks has the works whose statuses runRepeated requests: works that were
// delivered again, and works whose stored status a response to a request replaced.
//
// An agent that already has a repeated work ignores the delivery, so only a status resync
// request recovers a lost status. A request does not help a slow agent that is still
// applying its works. So an agent gets at most one request in AskPause, for all its works
// that are unacknowledged then.
//
// OCM's agents copy their statuses when a request arrives, and number the responses when
// they send them. A status that such an agent reports in between has a lower sequence than
// the older status in the response, which therefore replaces it, and the agent does not
// report it again. A further request finds the difference; it has to come when the agent has
// finished its responses, so AskPause begins anew with each response that replaces a status.
type repeatedWorks struct {
	woken chan struct{}

	mu      sync.Mutex
	waiting map[work.Consumer]askedWorks // by consumer
	last    map[work.Consumer]time.Time  // of the last request to a consumer or its last response; removed after AskPause
}

// askedWorks has the ids of the works of one consumer that its next request is about.
type askedWorks struct {
	repeated map[work.ID]struct{} // only when they are unacknowledged then
	replaced map[work.ID]struct{}
}

const (
	AskPause   = 10 * time.Second // least time from a request to one agent, or its response, to the next request
	askTimeout = 5 * time.Second  // for one consumer's request
	askers     = 4                // most requests at the same time
)

func newRepeatedWorks() *repeatedWorks {
	return &repeatedWorks{woken: make(chan struct{}, 1), waiting: map[work.Consumer]askedWorks{},
		last: map[work.Consumer]time.Time{}}
}

// add records that works were delivered to a consumer again.
func (a *repeatedWorks) add(consumer work.Consumer, ids []work.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set := a.worksOf(consumer).repeated
	for _, id := range ids {
		set[id] = struct{}{}
	}
}

// addReplaced records that a response of a consumer's agent replaced the statuses of works.
func (a *repeatedWorks) addReplaced(consumer work.Consumer, ids []work.ID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last[consumer] = now
	set := a.worksOf(consumer).replaced
	for _, id := range ids {
		set[id] = struct{}{}
	}
}

// worksOf returns the works of the next request to a consumer. The caller holds mu.
func (a *repeatedWorks) worksOf(consumer work.Consumer) askedWorks {
	works, found := a.waiting[consumer]
	if !found {
		works = askedWorks{repeated: map[work.ID]struct{}{}, replaced: map[work.ID]struct{}{}}
		a.waiting[consumer] = works
		select {
		case a.woken <- struct{}{}:
		default:
		}
	}
	return works
}

// take removes and returns the works of the consumers that may get a request now, and
// the time of the next request; the zero time when no consumer waits.
func (a *repeatedWorks) take(now time.Time) (due map[work.Consumer]askedWorks, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for consumer, at := range a.last {
		if now.Sub(at) >= AskPause {
			delete(a.last, consumer)
		}
	}
	due = map[work.Consumer]askedWorks{}
	for consumer, works := range a.waiting {
		if at, asked := a.last[consumer]; asked {
			if at = at.Add(AskPause); next.IsZero() || at.Before(next) {
				next = at
			}
			continue
		}
		due[consumer] = works
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
		for consumer, works := range due {
			group.Go(func() error {
				c.askWorks(ctx, consumer, works)
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

// askWorks asks one agent for the statuses of works. After a failed request, the next delivery
// of repeated works causes another one; replaced statuses get another one after AskPause.
func (c *Comparer) askWorks(ctx context.Context, consumer work.Consumer, works askedWorks) {
	askCtx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	replaced := slices.Sorted(maps.Keys(works.replaced))
	err := c.askIDs(askCtx, consumer, slices.Collect(maps.Keys(works.repeated)), replaced)
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "statuses not asked for", slog.String("consumer", string(consumer)),
			slog.Any("error", err))
		if len(replaced) > 0 {
			c.repeated.addReplaced(consumer, replaced, time.Now())
		}
	}
}

// askIDs asks one agent for the statuses of those repeated works that it has not acknowledged, and
// of the works in replaced.
func (c *Comparer) askIDs(ctx context.Context, consumer work.Consumer, repeated, replaced []work.ID) error {
	ids := replaced
	if len(repeated) > 0 {
		unacknowledged, err := c.o.Ledger.Unacknowledged(ctx, consumer, repeated)
		if err != nil {
			return err
		}
		ids = append(unacknowledged, replaced...)
	}
	if len(ids) == 0 { // a request without ids asks for all statuses
		return nil
	}
	return c.askConsumer(ctx, consumer, ids)
}
