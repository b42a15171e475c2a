package maestro

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/fairqueue"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// resyncRequest is what an agent says about what it holds, to be compared. One
// of versions, digest, works and spec is meant; kind says which.
type resyncRequest struct {
	consumer string
	at       time.Time // when it came
	kind     string    // the event's type
	versions []work.SpecVersion
	digests  bool // the agent speaks digests, too
	digest   work.Digest
	works    work.BucketWorks
	spec     bus.Event // a work as the agent has it
	ack      func()
}

// resyncs answers resync requests, a few at a time and of all consumers in turn:
// each reads all of a consumer's ledger, and after an outage all agents ask at
// once.
type resyncs struct {
	s     *Server
	queue *fairqueue.Queue[resyncRequest]
}

const resyncWorkers = 4

// resyncShares is room for the answer of one agent to a comparison of all its
// buckets, in messages of 96 KB.
var resyncShares = fairqueue.Shares{Items: 64, Bytes: 32 << 20, AllItems: 16 << 10, AllBytes: 256 << 20, Turn: 1}

func newResyncs(s *Server) *resyncs {
	return &resyncs{s: s, queue: fairqueue.New[resyncRequest](resyncShares)}
}

// put must not wait, like ingest.put. A request that says all of what an agent
// holds replaces an earlier one. What exceeds its consumer's share is dropped;
// the agent compares again.
func (rs *resyncs) put(r resyncRequest, size int) {
	r.at = time.Now()
	key := ""
	if r.kind == work.SpecResync || r.kind == work.AgentDigest {
		key = r.kind
	}
	old, ok := rs.queue.Put(r.consumer, key, size+512, r, func(resyncRequest) bool { return true })
	switch {
	case !ok:
		rs.s.metrics.dropped.WithLabelValues("overflow").Inc()
		r.ack()
	case old != nil:
		rs.s.metrics.dropped.WithLabelValues("superseded").Inc()
		old.ack()
	}
}

func (rs *resyncs) run(ctx context.Context) error {
	for {
		batch := rs.queue.Take(ctx, 1)
		if len(batch.Items) == 0 {
			return nil
		}
		rs.answer(ctx, batch.Items[0])
		rs.queue.Done(batch)
	}
}

// An answer that the broker does not take must not hold a worker: others wait.
const answerTries = 3

var errAnswerUnsent = errors.New("the answer was not sent")

// answer compares, records what the comparison says in one transaction, and
// only then acknowledges the request and has the difference sent: a server
// that dies in between finds it pending in the ledger.
func (rs *resyncs) answer(ctx context.Context, r resyncRequest) {
	start := time.Now()
	for wait, unsent := 50*time.Millisecond, 0; ; wait = min(2*wait, time.Second) {
		err := rs.s.answer(ctx, r)
		if err == nil {
			r.ack()
			since(rs.s.metrics.resync, start)
			return
		}
		rs.s.log.LogAttrs(ctx, slog.LevelWarn, "resync request not answered yet", slog.String("consumer", r.consumer),
			slog.Any("error", err))
		if errors.Is(err, errAnswerUnsent) {
			unsent++
		}
		if !transient(err) || unsent == answerTries {
			r.ack() // it will fail again; the agent asks anew when it reconnects, or after minutes
			return
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (s *Server) answer(ctx context.Context, r resyncRequest) error {
	ctx = store.WithActor(ctx, store.Actor{Principal: r.consumer})
	switch r.kind {
	case work.AgentDigest:
		return s.answerDigest(ctx, r.consumer, r.at, r.digest)
	case work.AgentWorks:
		return s.answerWorks(ctx, r.consumer, r.at, r.works)
	case work.AgentSpec:
		return s.adoptHeldSpec(ctx, r.consumer, r.spec)
	}
	record := s.ledger.RecordListUse
	if r.digests {
		record = s.ledger.RecordDigestUse
	}
	if err := record(ctx, r.consumer); err != nil {
		return err
	}
	if err := s.reconcile(ctx, r.consumer, r.at, r.versions, nil, nil); err != nil {
		return err
	}
	if err := s.ledger.MarkCompared(ctx, r.consumer, s.life()); err != nil || r.digests || len(r.versions) == 0 {
		return err
	}
	// An agent that compares by lists says nothing of its statuses. What it
	// reported while it had no broker is lost, and if it came back later than
	// this server did, it was not there to be asked (I6).
	return s.askConsumer(ctx, r.consumer, nil)
}

// reconcile compares an agent's list with what it is to have, and has the
// difference sent. The list came at a time, and with scope both are about those
// ids only. What the agent has of another life of our database may be other
// than what has the same generation here, so that is raised above.
func (s *Server) reconcile(ctx context.Context, consumer string, at time.Time, theirs []work.SpecVersion,
	other map[string]bool, scope *ledger.Scope) error {
	var c ledger.Comparison
	var tombstones []ledger.Work
	versions := make(map[string]int64, len(theirs))
	for _, v := range theirs {
		versions[v.ID] = v.Version
	}
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		ours, err := ledger.HeldBy(ctx, tx, consumer, scope)
		if err != nil {
			return err
		}
		c = ledger.Compare(ours, theirs)
		if err := ledger.LowerAcknowledged(ctx, tx, c.Send, theirs, time.Since(at)); err != nil {
			return err
		}
		if c, err = raiseAhead(ctx, tx, c, ours, versions, other); err != nil {
			return err
		}
		if tombstones, err = ledger.TombstonesAmong(ctx, tx, consumer, c.Unknown); err != nil {
			return err
		}
		c.Unknown = c.WithoutTombstones(tombstones)
		return ledger.ReplaceUnknown(ctx, tx, consumer, c.Unknown, versions, scope)
	})
	if err != nil {
		return err
	}
	if len(c.Unknown) > 0 {
		if err := s.askAdoptions(ctx, consumer); err != nil {
			return err
		}
		s.log.LogAttrs(ctx, slog.LevelWarn, "agent holds works that no source has; they are left alone",
			slog.String("consumer", consumer),
			slog.Int("works", len(c.Unknown)), slog.String("first", c.Unknown[0]))
	}
	s.unknownChanged()
	for _, g := range tombstones {
		m := wire.EncodeTombstone(consumer, g.ID, max(g.Generation, versions[g.ID]), s.opts.SourceID, time.Now())
		if versions[g.ID] <= g.Generation {
			m.Extensions[work.ExtLife] = s.life() // the agent refuses what was ordered before
		}
		if err := s.publish(ctx, consumer, m); err != nil {
			// The agent is asked again by nobody, but it asks again itself
			// when the broker is back.
			return errors.Join(errAnswerUnsent, store.ErrUnavailable, err)
		}
	}
	if d := s.carrierOf(consumer); d != nil {
		return d.applyComparison(ctx, consumer, c)
	}
	return nil
}

// raiseAhead raises what the agent holds at a later generation than ours, and
// sends it.
func raiseAhead(ctx context.Context, tx *store.Tx, c ledger.Comparison, ours []ledger.Work, versions map[string]int64,
	other map[string]bool) (ledger.Comparison, error) {
	var received, send []ledger.Work
	raisedIDs := map[string]bool{}
	for _, h := range slices.SortedFunc(slices.Values(ours), func(a, b ledger.Work) int {
		return strings.Compare(a.ID, b.ID)
	}) {
		version, has := versions[h.ID]
		if !has || version < h.Generation || version == h.Generation && !other[h.ID] {
			continue
		}
		if err := ledger.Lock(ctx, tx, h.ID); err != nil {
			return c, err
		}
		d, err := tx.GetForUpdate(ctx, bundle.Kind, h.ID)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return c, err
		}
		d, raised, err := raiseGeneration(ctx, tx, d, versions[h.ID])
		if err != nil {
			return c, err
		}
		if raised {
			raisedIDs[d.ID] = true
			send = append(send, ledger.Work{ID: d.ID, Generation: d.Generation, Deleting: d.DeletedAt != nil})
		}
	}
	for _, h := range c.Received {
		if !raisedIDs[h.ID] {
			received = append(received, h)
		}
	}
	for _, h := range c.Send {
		if !raisedIDs[h.ID] {
			send = append(send, h)
		}
	}
	c.Received, c.Send = received, send
	return c, nil
}
