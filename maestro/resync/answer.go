package resync

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pause"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/fairqueue"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/records"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// request is an agent's message about the works that it holds. kind selects
// which one of versions, digest, works and spec is set.
type request struct {
	consumer work.Consumer
	at       time.Time // when it arrived
	kind     string    // the event's type
	versions []work.SpecVersion
	digests  bool // the agent can also compare by digests
	digest   work.Digest
	works    work.BucketWorks
	spec     bus.Event // one work as the agent holds it
	ack      func()
}

const (
	answerWorkers = 4
	digestBytes   = 1024 // at most, of a queued digest
)

// requestShares is room for the answer of one agent to a comparison of all its
// buckets, in messages of 96 KB.
var requestShares = fairqueue.Shares{Items: 64, Bytes: 32 << 20, AllItems: 16 << 10, AllBytes: 256 << 20, Turn: 1}

// Enqueue queues a message in which an agent compares, and never waits. It arranges that ack
// is called once, when the message is answered or superseded, or when the queue has no room
// for it. For a malformed message it returns an error and does not call ack.
//
// A comparison of all works of an agent replaces an earlier one. But a list replaces no digest:
// an agent that compares by digests sends a list because its digest has no answer yet, and after
// an outage the digests of all agents wait. After a message without room runAnswers asks the agent
// to compare again, when it has answered the others.
func (c *Comparer) Enqueue(consumer work.Consumer, m bus.Event, ack func()) error {
	r, err := decode(consumer, m, time.Now())
	if err != nil {
		return err
	}
	r.ack = ack
	key := ""
	switch {
	case r.kind == work.AgentDigest || r.kind == work.SpecResync && r.digests:
		key = work.AgentDigest
	case r.kind == work.SpecResync:
		key = r.kind
	}
	always := func(request) bool { return true }
	old, ok := c.queue.Put(consumer, key, len(m.Data)+512, r, always)
	if old != nil && old.kind == work.AgentDigest && r.kind == work.SpecResync {
		// The digest takes its place again. If a worker has taken the list meanwhile, the worker answers both.
		r = *old
		old, ok = c.queue.Put(consumer, key, digestBytes, r, always)
	}
	switch {
	case !ok:
		c.o.Dropped.WithLabelValues("overflow").Inc()
		r.ack()
	case old != nil:
		c.o.Dropped.WithLabelValues("superseded").Inc()
		old.ack()
	}
	return nil
}

// decode returns the request of a message that arrived at the time at.
func decode(consumer work.Consumer, m bus.Event, at time.Time) (request, error) {
	r := request{consumer: consumer, at: at, kind: m.Type}
	var err error
	switch m.Type {
	case work.SpecResync:
		var list work.SpecVersions
		err = rest.DecodeJSON(m.Data, &list)
		r.versions, r.digests = list.Versions, m.Extensions[work.ExtDigests] != ""
	case work.AgentDigest:
		err = rest.DecodeJSON(m.Data, &r.digest)
	case work.AgentWorks:
		if err = rest.DecodeJSON(m.Data, &r.works); err == nil {
			err = checkBuckets(r.works)
		}
	case work.AgentSpec:
		r.spec = m
	}
	return r, err
}

// Answer compares a message of an agent, which arrived at the time arrived, with the ledger, and has the differing
// works sent. It does not queue the message and tries once.
func (c *Comparer) Answer(ctx context.Context, consumer work.Consumer, m bus.Event, arrived time.Time) error {
	r, err := decode(consumer, m, arrived)
	if err != nil {
		return err
	}
	return c.answer(ctx, r)
}

// runAnswers answers queued requests until ctx ends. Several workers run it, a few at a time
// and of all consumers in turn: an answer reads all of a consumer's ledger, and after an
// outage all agents send requests at the same time.
func (c *Comparer) runAnswers(ctx context.Context) error {
	for {
		batch := c.queue.Take(ctx, 1)
		if len(batch.Items) == 0 {
			return nil
		}
		c.answerUntilDone(ctx, batch.Items[0])
		for _, consumer := range c.queue.Done(batch) {
			c.AskAgent(consumer)
		}
	}
}

// answerTries limits the tries to send one answer, so that a broker that refuses it
// does not block a worker.
const answerTries = 3

var errAnswerUnsent = errors.New("the answer was not sent")

// answerUntilDone compares, records the result in one transaction, and only then acknowledges
// the request and sends the differing works. After a crash in between, the ledger has
// those works as unacknowledged. After a temporary error it tries again.
func (c *Comparer) answerUntilDone(ctx context.Context, r request) {
	start := time.Now()
	for wait, unsent := 50*time.Millisecond, 0; ; wait = min(2*wait, time.Second) {
		err := c.answer(ctx, r)
		if err == nil {
			r.ack()
			c.o.Took.Observe(time.Since(start).Seconds())
			return
		}
		c.log.LogAttrs(ctx, slog.LevelWarn, "resync request not answered yet", slog.String("consumer", string(r.consumer)),
			slog.Any("error", err))
		if errors.Is(err, errAnswerUnsent) {
			unsent++
		}
		if !store.IsTransient(err) || unsent == answerTries {
			r.ack() // a further try would fail, too; the agent sends a new request after minutes or a reconnect
			return
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// answer compares once and has the differing works sent.
func (c *Comparer) answer(ctx context.Context, r request) error {
	ctx = store.WithActor(ctx, store.Actor{Principal: string(r.consumer)})
	switch r.kind {
	case work.AgentDigest:
		return c.answerDigest(ctx, r.consumer, r.at, r.digest)
	case work.AgentWorks:
		return c.answerWorks(ctx, r.consumer, r.at, r.works)
	case work.AgentSpec:
		return c.o.Records.AdoptHeldSpec(ctx, r.consumer, r.spec)
	}
	record := c.o.Ledger.RecordListUse
	if r.digests {
		record = c.o.Ledger.RecordDigestUse
	}
	if err := record(ctx, r.consumer); err != nil {
		return err
	}
	if _, err := c.reconcile(ctx, r.consumer, r.at, r.versions, nil, nil); err != nil {
		return err
	}
	if err := c.o.Ledger.MarkCompared(ctx, r.consumer, c.o.Life()); err != nil || r.digests || len(r.versions) == 0 {
		return err
	}
	// The list of an agent that compares by lists has no statuses. Statuses that the
	// agent sent while the broker was down are lost, and an agent that reconnects later
	// than this server did not receive this server's request for them (I6).
	return c.askConsumer(ctx, r.consumer, nil)
}

// reconcile compares an agent's list with the ledger, sends the differing works, and returns
// the comparison. The list arrived at the time at. With a scope, the list and the ledger are compared
// for the ids of the scope only. other has the works that the agent received before the
// database was lost or restored: their content may differ at an equal generation, so
// reconcile gives such bundles a higher generation.
func (c *Comparer) reconcile(ctx context.Context, consumer work.Consumer, at time.Time, theirs []work.SpecVersion,
	other map[work.ID]bool, scope *ledger.Scope) (ledger.Comparison, error) {
	var found ledger.Comparison
	var tombstones []delivery.Work
	versions := make(map[work.ID]int64, len(theirs))
	for _, v := range theirs {
		versions[v.ID] = v.Version
	}
	err := c.o.Store.Tx(ctx, func(tx *store.Tx) error {
		ours, err := ledger.HeldBy(ctx, tx, consumer, scope)
		if err != nil {
			return err
		}
		found = ledger.Compare(ours, theirs)
		if err := ledger.LowerAcknowledged(ctx, tx, found.Send, theirs, time.Since(at)); err != nil {
			return err
		}
		if found, err = raiseAhead(ctx, tx, found, ours, versions, other); err != nil {
			return err
		}
		tombstones = nil
		if len(found.Unknown) > 0 {
			if tombstones, err = ledger.TombstonesAmong(ctx, tx, consumer, found.Unknown); err != nil {
				return err
			}
		}
		found.Unknown = found.WithoutTombstones(tombstones)
		return ledger.ReplaceUnknown(ctx, tx, consumer, found.Unknown, versions, scope)
	})
	if err != nil {
		return found, err
	}
	if len(found.Unknown) > 0 {
		if err := c.askAdoptions(ctx, consumer); err != nil {
			return found, err
		}
		c.log.LogAttrs(ctx, slog.LevelWarn, "agent holds works without a bundle; they stay applied",
			slog.String("consumer", string(consumer)),
			slog.Int("works", len(found.Unknown)), slog.String("first", string(found.Unknown[0])))
	}
	c.o.UnknownChanged()
	for _, g := range tombstones {
		m := wire.EncodeTombstone(consumer, g.ID, max(g.Generation, versions[g.ID]), c.o.SourceID, time.Now())
		if versions[g.ID] <= g.Generation {
			m.Extensions[work.ExtLife] = c.o.Life() // the agent refuses older orders
		}
		if err := c.o.Agents.Publish(ctx, consumer, m); err != nil {
			// No server asks the agent again, but the agent sends a new request when
			// the broker is back.
			return found, errors.Join(errAnswerUnsent, store.ErrUnavailable, err)
		}
	}
	return found, c.o.Agents.ApplyComparison(ctx, consumer, found)
}

// raiseAhead gives bundles that the agent holds at a later generation than the store,
// or at an equal one of other content, a higher generation. It returns the comparison
// with these bundles among the works to send.
func raiseAhead(ctx context.Context, tx *store.Tx, c ledger.Comparison, ours []ledger.WantedWork,
	versions map[work.ID]int64, other map[work.ID]bool) (ledger.Comparison, error) {
	var received, send []delivery.Work
	raisedIDs := map[work.ID]bool{}
	for _, h := range slices.SortedFunc(slices.Values(ours), func(a, b ledger.WantedWork) int {
		return strings.Compare(string(a.ID), string(b.ID))
	}) {
		version, has := versions[h.ID]
		if !has || version < h.Generation || version == h.Generation && !other[h.ID] {
			continue
		}
		if err := ledger.Lock(ctx, tx, h.ID); err != nil {
			return c, err
		}
		d, err := tx.GetForUpdate(ctx, bundle.Kind, string(h.ID))
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
			raisedIDs[work.ID(d.ID)] = true
			send = append(send, ledger.WorkOf(d))
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
