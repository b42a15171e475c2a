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
	"atoll.dev/maestro/records"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// resyncRequest is an agent's message about the works that it holds. kind selects
// which one of versions, digest, works and spec is set.
type resyncRequest struct {
	consumer string
	at       time.Time // when it arrived
	kind     string    // the event's type
	versions []work.SpecVersion
	digests  bool // the agent can also compare by digests
	digest   work.Digest
	works    work.BucketWorks
	spec     bus.Event // one work as the agent holds it
	ack      func()
}

// resyncs answers resync requests, a few at a time and of all consumers in turn. An
// answer reads all of a consumer's ledger, and after an outage all agents send
// requests at the same time.
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

// put queues a request and never waits, like ingest.put. A request about all works of
// an agent replaces an earlier one. put drops a request that exceeds the consumer's
// share; run asks the agent to compare again when it has answered the others.
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

// run answers queued requests until ctx ends. Several workers run it.
func (rs *resyncs) run(ctx context.Context) error {
	for {
		batch := rs.queue.Take(ctx, 1)
		if len(batch.Items) == 0 {
			return nil
		}
		rs.answer(ctx, batch.Items[0])
		for _, consumer := range rs.queue.Done(batch) {
			rs.s.askStatusesOf(consumer)
		}
	}
}

// answerTries limits the tries to send one answer, so that a broker that refuses it
// does not block a worker.
const answerTries = 3

var errAnswerUnsent = errors.New("the answer was not sent")

// answer compares, records the result in one transaction, and only then acknowledges
// the request and sends the differing works. After a crash in between, the ledger has
// those works as unacknowledged. After a temporary error answer tries again.
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
			r.ack() // a further try would fail, too; the agent sends a new request after minutes or a reconnect
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
		return s.records.AdoptHeldSpec(ctx, r.consumer, r.spec)
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
	// The list of an agent that compares by lists has no statuses. Statuses that the
	// agent sent while the broker was down are lost, and an agent that reconnects later
	// than this server did not receive this server's request for them (I6).
	return s.askConsumer(ctx, r.consumer, nil)
}

// reconcile compares an agent's list with the ledger, and sends the differing works.
// The list arrived at the time at. With a scope, the list and the ledger are compared
// for the ids of the scope only. other has the works that the agent received before the
// database was lost or restored: their content may differ at an equal generation, so
// reconcile gives such bundles a higher generation.
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
		s.log.LogAttrs(ctx, slog.LevelWarn, "agent holds works without a bundle; they stay applied",
			slog.String("consumer", consumer),
			slog.Int("works", len(c.Unknown)), slog.String("first", c.Unknown[0]))
	}
	s.unknownChanged()
	for _, g := range tombstones {
		m := wire.EncodeTombstone(consumer, g.ID, max(g.Generation, versions[g.ID]), s.opts.SourceID, time.Now())
		if versions[g.ID] <= g.Generation {
			m.Extensions[work.ExtLife] = s.life() // the agent refuses older orders
		}
		if err := s.publish(ctx, consumer, m); err != nil {
			// No server asks the agent again, but the agent sends a new request when
			// the broker is back.
			return errors.Join(errAnswerUnsent, store.ErrUnavailable, err)
		}
	}
	if d := s.carrierOf(consumer); d != nil {
		return d.applyComparison(ctx, consumer, c)
	}
	return nil
}

// raiseAhead gives bundles that the agent holds at a later generation than the store,
// or at an equal one of other content, a higher generation. It returns the comparison
// with these bundles among the works to send.
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
		d, raised, err := records.RaiseGeneration(ctx, tx, d, versions[h.ID])
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
