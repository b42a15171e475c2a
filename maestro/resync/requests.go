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
	"atoll.dev/internal/pause"
	"atoll.dev/maestro/wire"
)

// requestQueue has the agents to which sendRequests must send a request for a comparison.
type requestQueue struct {
	woken chan struct{}

	mu     sync.Mutex
	queued agentSet
}

// agentSet is a set of agents: all agents that have bundles, and the named ones.
type agentSet struct {
	all   bool
	named map[work.Consumer]bool
}

func (s agentSet) isEmpty() bool { return !s.all && len(s.named) == 0 }

func newRequestQueue() *requestQueue {
	return &requestQueue{woken: make(chan struct{}, 1), queued: agentSet{named: map[work.Consumer]bool{}}}
}

// add queues consumers, or all when none is named.
func (q *requestQueue) add(consumers ...work.Consumer) {
	q.mu.Lock()
	q.queued.all = q.queued.all || len(consumers) == 0
	for _, name := range consumers {
		q.queued.named[name] = true
	}
	q.mu.Unlock()
	select {
	case q.woken <- struct{}{}:
	default:
	}
}

// take empties the queue and returns its content.
func (q *requestQueue) take() agentSet {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.queued
	q.queued = agentSet{named: map[work.Consumer]bool{}}
	return taken
}

// An agent that compares by digests and does not answer gets further requests, and at
// last a request in the form of lists: its cluster may have another agent now.
const (
	askAgain = 3 * time.Second
	askTries = 3
)

// The server repeats an unsent request after askRetry, twice that and so on up to
// askRetryMax. After dropped statuses it asks an agent at most once in overflowPause,
// since the answer is again a burst of statuses.
const (
	askRetry      = 100 * time.Millisecond
	askRetryMax   = time.Minute
	overflowPause = 10 * time.Second
	asksAtOnce    = 8
)

// asked is the state of the request to one agent: not sent yet, or not answered yet.
// Only sendRequests uses it.
type asked struct {
	at, due  time.Time
	tries    int
	lists    bool // it compares by lists: one request, and no answer to wait for
	failures int  // failed sends in a row
}

// sendRequests sends the queued requests to agents until ctx ends. Statuses may be lost
// after an outage of the broker or the database, or the death of another server.
func (c *Comparer) sendRequests(ctx context.Context) error {
	open := map[work.Consumer]asked{}
	lastOverflow := map[work.Consumer]time.Time{} // time of the last request to an agent because of dropped statuses
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.requests.woken:
		case <-timer.C:
		}
		added := c.requests.take()
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
			err := c.plan(ctx, added, open, lastOverflow)
			if err == nil {
				break
			}
			c.log.LogAttrs(ctx, slog.LevelWarn, "statuses not compared yet", slog.Any("error", err))
			if !pause.For(ctx, wait) {
				return nil
			}
		}
		c.askDue(ctx, open)
		next := time.Hour
		for _, a := range open {
			next = min(next, max(time.Until(a.due), 10*time.Millisecond))
		}
		timer.Reset(next)
	}
}

// plan updates open: it removes the agents that have answered, and adds the agents in added.
func (c *Comparer) plan(ctx context.Context, added agentSet, open map[work.Consumer]asked,
	lastOverflow map[work.Consumer]time.Time) error {
	if len(open) == 0 && added.isEmpty() {
		return nil
	}
	digestTimes, err := c.o.Ledger.DigestAgents(ctx)
	if err != nil {
		return err
	}
	for name, a := range open {
		if at, usesDigests := digestTimes[name]; !a.lists && (!usesDigests || at.After(a.at)) && a.tries > 0 {
			delete(open, name)
		}
	}
	now := time.Now()
	if added.all {
		names, err := c.o.Ledger.ConsumersWithBundles(ctx)
		if err != nil {
			return err
		}
		clear(open)
		for _, name := range names {
			_, usesDigests := digestTimes[name]
			open[name] = asked{due: now, lists: !usesDigests}
		}
	}
	for name, at := range lastOverflow {
		if now.Sub(at) > overflowPause {
			delete(lastOverflow, name)
		}
	}
	for name := range added.named {
		if _, waits := open[name]; waits {
			continue
		}
		due := now
		if at, recent := lastOverflow[name]; recent {
			due = at.Add(overflowPause)
		}
		lastOverflow[name] = due
		_, usesDigests := digestTimes[name]
		open[name] = asked{due: due, lists: !usesDigests}
	}
	return nil
}

// askDue sends the due requests, asksAtOnce at the same time. A failed request delays no
// other agent's.
func (c *Comparer) askDue(ctx context.Context, open map[work.Consumer]asked) {
	now := time.Now()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(asksAtOnce)
	for _, name := range slices.Sorted(maps.Keys(open)) {
		mu.Lock()
		a := open[name]
		mu.Unlock()
		if a.due.After(now) {
			continue
		}
		group.Go(func() error {
			next, wait, err := c.askOne(ctx, name, a)
			if err != nil && ctx.Err() == nil {
				c.log.LogAttrs(ctx, slog.LevelWarn, "an agent is not asked for its statuses yet",
					slog.String("consumer", string(name)), slog.Any("error", err))
			}
			mu.Lock()
			defer mu.Unlock()
			if wait {
				open[name] = next
			} else {
				delete(open, name)
			}
			return nil
		})
	}
	_ = group.Wait() // each has handled its error
}

// askOne sends one agent a request. It returns the new state of the request, and false
// when the request is finished: no answer and no retry is to come.
func (c *Comparer) askOne(ctx context.Context, name work.Consumer, a asked) (next asked, wait bool, err error) {
	now := time.Now()
	if a.lists || a.tries == askTries {
		err = c.askConsumer(ctx, name, nil)
		wait = err != nil
	} else {
		if a.tries == 0 {
			a.at = now
		}
		if err = c.SendDigest(ctx, name, work.DigestAnswer{Ask: true}); err == nil {
			a.tries++
			a.due = now.Add(askAgain << (a.tries - 1))
		}
		wait = true
	}
	if err != nil {
		a.due = now.Add(min(askRetry<<min(a.failures, 20), askRetryMax))
		a.failures++
	} else {
		a.failures = 0
	}
	return a, wait, err
}

// askConsumer asks one agent by a status resync request, which all agents support, for
// the statuses of the bundles in ids, or of all when ids is nil.
func (c *Comparer) askConsumer(ctx context.Context, consumer work.Consumer, ids []work.ID) error {
	hashes, latest, err := c.o.Ledger.StatusHashes(ctx, consumer, ids)
	if err != nil {
		return err
	}
	limit, err := c.hashBytes(consumer)
	if err != nil {
		return err
	}
	for _, batch := range batchHashes(hashes, limit) {
		m, err := wire.EncodeStatusResync(consumer, batch, latest, c.o.SourceID)
		if err != nil {
			return err
		}
		if err := c.o.Agents.Publish(ctx, consumer, m); err != nil {
			return err
		}
	}
	return nil
}

// hashBytes returns the largest size of the data of a status resync request to a consumer.
// The broker's limit is for the whole message.
func (c *Comparer) hashBytes(consumer work.Consumer) (int, error) {
	room, err := c.o.Room(consumer, wire.StatusResyncHeader(consumer, longestSequence, c.o.SourceID))
	return min(bytesPerRequest, room), err
}

// Limits of one status resync request, for brokers that accept more. A broker that does
// not announce its limit may accept only 128 KB.
const (
	hashesPerRequest = 1000
	bytesPerRequest  = 96 << 10
)

// longestSequence is as long as any sequence: the largest number of 63 bits.
const longestSequence = "9223372036854775807"

// batchHashes cuts a list of hashes into requests of at most limit bytes of data
// each; a hash that exceeds the limit is a request of its own. No bundle makes no
// request, since an empty one would ask for everything.
func batchHashes(hashes []work.StatusHash, limit int) [][]work.StatusHash {
	const overhead = len(`{"resourceID":"","statusHash":""},`)
	const frame = len(`{"statusHashes":[]}`)
	var batches [][]work.StatusHash
	start, size := 0, frame
	for i, h := range hashes {
		n := len(h.ID) + len(h.Hash) + overhead
		if i > start && (i-start == hashesPerRequest || size+n > limit) {
			batches = append(batches, hashes[start:i])
			start, size = i, frame
		}
		size += n
	}
	if start < len(hashes) {
		batches = append(batches, hashes[start:])
	}
	return batches
}
