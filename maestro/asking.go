package maestro

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/maestro/wire"
)

// askingQueue is what runAsking is to do: ask all agents, or some.
type askingQueue struct {
	woken chan struct{}

	mu   sync.Mutex
	all  bool
	some map[string]bool
}

func newAskingQueue() *askingQueue {
	return &askingQueue{woken: make(chan struct{}, 1), some: map[string]bool{}}
}

func (q *askingQueue) add(consumers ...string) {
	q.mu.Lock()
	q.all = q.all || len(consumers) == 0
	for _, name := range consumers {
		q.some[name] = true
	}
	q.mu.Unlock()
	select {
	case q.woken <- struct{}{}:
	default:
	}
}

func (q *askingQueue) take() (all bool, some map[string]bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all, some = q.all, q.some
	q.all, q.some = false, map[string]bool{}
	return all, some
}

// askStatuses has every agent compare what it holds with ours, soon.
func (s *Server) askStatuses() { s.asking.add() }

// askStatusesOf has one agent do so, of whose statuses some were dropped.
func (s *Server) askStatusesOf(consumer string) { s.asking.add(consumer) }

// An agent that speaks digests is asked again when it says nothing, and at
// last in the other form: its cluster may have another agent now.
const (
	askAgain = 3 * time.Second
	askTries = 3
)

// A question that was not sent is repeated after askRetry, twice that and so on
// up to askRetryMax. An agent of whose statuses some were dropped is asked once
// in overflowPause: its answer is a burst of statuses, too.
const (
	askRetry      = 100 * time.Millisecond
	askRetryMax   = time.Minute
	overflowPause = 10 * time.Second
	asksAtOnce    = 8
)

// asked are the agents that are to be asked, or whose digest has not come. It
// belongs to runAsking.
type asked struct {
	at, due  time.Time
	tries    int
	lists    bool // it compares by lists: one question, and no answer to wait for
	failures int  // of sending, in a row
}

// runAsking asks agents for their statuses when told to: after the broker or
// the database was away, or another server died, whatever agents reported
// meanwhile may be lost.
func (s *Server) runAsking(ctx context.Context) error {
	open := map[string]asked{}
	lastSome := map[string]time.Time{} // when an agent was asked because of an overflow
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.asking.woken:
		case <-timer.C:
		}
		all, some := s.asking.take()
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
			err := s.plan(ctx, all, some, open, lastSome)
			if err == nil {
				break
			}
			s.log.LogAttrs(ctx, slog.LevelWarn, "statuses not compared yet", slog.Any("error", err))
			if !sleep(ctx, wait) {
				return nil
			}
		}
		s.askDue(ctx, open)
		next := time.Hour
		for _, a := range open {
			next = min(next, max(time.Until(a.due), 10*time.Millisecond))
		}
		timer.Reset(next)
	}
}

// plan brings open up to date: it drops the agents that have answered, and adds
// all agents that have bundles, or some of them.
func (s *Server) plan(ctx context.Context, all bool, some map[string]bool, open map[string]asked,
	lastSome map[string]time.Time) error {
	if len(open) == 0 && !all && len(some) == 0 {
		return nil
	}
	speakers, err := s.ledger.DigestAgents(ctx)
	if err != nil {
		return err
	}
	for name, a := range open {
		if at, speaks := speakers[name]; !a.lists && (!speaks || at.After(a.at)) && a.tries > 0 {
			delete(open, name)
		}
	}
	now := time.Now()
	if all {
		names, err := s.ledger.ConsumersWithBundles(ctx)
		if err != nil {
			return err
		}
		clear(open)
		for _, name := range names {
			_, speaks := speakers[name]
			open[name] = asked{due: now, lists: !speaks}
		}
	}
	for name, at := range lastSome {
		if now.Sub(at) > overflowPause {
			delete(lastSome, name)
		}
	}
	for name := range some {
		if _, waits := open[name]; waits {
			continue
		}
		due := now
		if at, recent := lastSome[name]; recent {
			due = at.Add(overflowPause)
		}
		lastSome[name] = due
		_, speaks := speakers[name]
		open[name] = asked{due: due, lists: !speaks}
	}
	return nil
}

// askDue asks the agents whose time has come, some at the same time. That one
// cannot be asked delays no other.
func (s *Server) askDue(ctx context.Context, open map[string]asked) {
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
			next, wait, err := s.askOne(ctx, name, a)
			if err != nil && ctx.Err() == nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "an agent is not asked for its statuses yet",
					slog.String("consumer", name), slog.Any("error", err))
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

// askOne asks one agent. It returns whether to wait for an answer or to try
// again, and until when.
func (s *Server) askOne(ctx context.Context, name string, a asked) (next asked, wait bool, err error) {
	now := time.Now()
	if a.lists || a.tries == askTries {
		err = s.askConsumer(ctx, name, nil)
		wait = err != nil
	} else {
		if a.tries == 0 {
			a.at = now
		}
		if err = s.sendDigest(ctx, name, work.DigestAnswer{Ask: true}); err == nil {
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

// askConsumer asks one agent in the form that all agents know, about some
// bundles or all.
func (s *Server) askConsumer(ctx context.Context, consumer string, ids []string) error {
	hashes, err := s.ledger.StatusHashes(ctx, consumer, ids)
	if err != nil {
		return err
	}
	limit, err := s.hashBytes(consumer)
	if err != nil {
		return err
	}
	for _, batch := range batchHashes(hashes, limit) {
		m, err := wire.EncodeStatusResync(consumer, batch, s.opts.SourceID)
		if err != nil {
			return err
		}
		if err := s.publish(ctx, consumer, m); err != nil {
			return err
		}
	}
	return nil
}

// hashBytes is how much data a status resync request to a consumer may have. The
// broker's limit is for the whole message.
func (s *Server) hashBytes(consumer string) (int, error) {
	if s.bus == nil || s.bus.Limit() == 0 {
		return bytesPerRequest, nil
	}
	empty, err := wire.EncodeStatusResync(consumer, nil, s.opts.SourceID)
	if err != nil {
		return 0, err
	}
	size, err := empty.Size(s.specTopic(consumer))
	return min(bytesPerRequest, s.bus.Limit()-size), err
}

// Limits of one status resync request, for brokers that take more. A broker that
// does not say what it takes may take 128 KB.
const (
	hashesPerRequest = 1000
	bytesPerRequest  = 96 << 10
)

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
