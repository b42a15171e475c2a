package maestro

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/fairqueue"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// Statuses are taken by a few workers, of all consumers in turn, and of one
// consumer by one worker at a time, so that no worker waits for another's row. A
// worker takes what has arrived, one or many, into one transaction, and
// acknowledges it to the broker after the commit (I6): alone a status waits for
// nothing, in a flood many share one flush of the disk.
const (
	ingestWorkers = 4
	ingestBatch   = 128
)

// ingestShares is room for two reports of each of 1,000 works of a consumer.
var ingestShares = fairqueue.Shares{Items: 2048, Bytes: 16 << 20, AllItems: 32 << 10, AllBytes: 128 << 20, Turn: 32}

// statusItem is a status on its way into the store. ack tells the broker that
// it is taken, or need not come again.
type statusItem struct {
	consumer string
	m        bus.Event
	ack      func()
	refused  func(reason string) // in place of ack when it was dropped; may be nil
	ev       bundle.StatusEvent  // once a worker has read m
}

func (i *statusItem) acknowledge() {
	if i.refused != nil && i.ev.Dropped != "" {
		i.refused(i.ev.Dropped)
		return
	}
	i.ack()
}

type ingest struct {
	s     *Server
	queue *fairqueue.Queue[statusItem]
}

func newIngest(s *Server) *ingest {
	return &ingest{s: s, queue: fairqueue.New[statusItem](ingestShares)}
}

// put queues a status. It must not wait, since nothing is read from the broker
// meanwhile: what exceeds its consumer's share is dropped, and its agent is asked
// for it later.
func (in *ingest) put(item statusItem) {
	old, ok := in.queue.Put(item.consumer, item.key(), len(item.m.Data)+512, item, item.replaces)
	switch {
	case !ok:
		in.s.metrics.dropped.WithLabelValues("overflow").Inc()
		item.ack()
	case old != nil:
		in.s.metrics.dropped.WithLabelValues("superseded").Inc()
		old.ack()
	}
}

// putWait is put for a caller that may wait for room.
func (in *ingest) putWait(ctx context.Context, item statusItem) error {
	for {
		roomier := in.queue.RoomChanged()
		if _, ok := in.queue.Put(item.consumer, "", 512, item, nil); ok {
			return nil
		}
		select {
		case <-roomier:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// key is the work of a status that a later one may replace while it waits; "" for
// one that nothing replaces. A report that a work is deleted is always taken.
func (i *statusItem) key() string {
	if i.m.Type != work.StatusUpdate || bytes.Contains(i.m.Data, []byte(`"Deleted"`)) {
		return ""
	}
	return i.m.Extensions[work.ExtResourceID]
}

// replaces says whether the status takes the place of an older one of its work:
// of the same generation and source, by its sequence.
func (i *statusItem) replaces(old statusItem) bool {
	same := func(ext string) bool { return i.m.Extensions[ext] == old.m.Extensions[ext] }
	return same(work.ExtResourceVersion) && same(work.ExtOriginalSource) && same(work.ExtClusterName) &&
		old.m.Extensions[work.ExtSequenceID] != "" && bundle.IsNewer(i.m.Extensions[work.ExtSequenceID], old.m.Extensions[work.ExtSequenceID])
}

func (in *ingest) run(ctx context.Context) error {
	for {
		batch := in.queue.Take(ctx, ingestBatch)
		if len(batch.Items) == 0 {
			return nil
		}
		in.store(ctx, batch.Items)
		for _, consumer := range in.queue.Done(batch) {
			in.s.askStatusesOf(consumer)
		}
	}
}

// take stores the items, however long the database is away, and acknowledges
// them.
func (in *ingest) store(ctx context.Context, items []statusItem) {
	if items = in.decode(ctx, items); len(items) == 0 {
		return
	}
	in.s.metrics.batch.Observe(float64(len(items)))
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := in.s.storeStatuses(ctx, items)
		switch {
		case err == nil:
			for _, item := range items {
				item.acknowledge()
			}
			if wait > 50*time.Millisecond {
				// While the database was away the broker may have given up
				// on what waited for us.
				in.s.askStatuses()
			}
			return
		case ctx.Err() != nil:
			return
		case !transient(err) && len(items) > 1:
			for i := range items {
				in.store(ctx, items[i:i+1])
			}
			return
		case !transient(err):
			in.s.metrics.dropped.WithLabelValues(bundle.DropMalformed).Inc()
			in.s.log.LogAttrs(ctx, slog.LevelWarn, "status dropped: it cannot be stored",
				slog.String("consumer", items[0].ev.Topic),
				slog.String("bundle", items[0].ev.Record.ID), slog.Any("error", err))
			items[0].ev.Dropped = bundle.DropMalformed
			items[0].acknowledge()
			return
		}
		in.s.log.LogAttrs(ctx, slog.LevelWarn, "statuses wait for the database", slog.Int("statuses", len(items)),
			slog.Any("error", err))
		if !sleep(ctx, wait) {
			return
		}
	}
}

// readable reads the events, which was left to the workers, and drops those
// that cannot be read.
func (in *ingest) decode(ctx context.Context, items []statusItem) []statusItem {
	good := items[:0]
	for _, item := range items {
		if item.ev.Topic == "" {
			var err error
			if item.ev, err = wire.DecodeStatus(item.consumer, item.m); err != nil {
				in.s.dropEvent(ctx, bundle.DropMalformed, item.consumer, item.m, err)
				item.ack()
				continue
			}
			item.m.Data = nil
		}
		good = append(good, item)
	}
	return good
}

// transient says that the same write can succeed later.
func transient(err error) bool {
	for _, t := range []error{store.ErrUnavailable, store.ErrTimeout, store.ErrConflict, store.ErrFull,
		store.ErrUnknownOutcome, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// outcome is what a transaction made of one bundle's statuses.
type outcome struct {
	consumer, id string
	ack          ledger.Acknowledgement
	acked        bool
	removed      bool
	raised       *store.Document // given a higher generation
	lost         *delivery.Work  // to be sent again
	drops        []drop
}

type drop struct {
	reason string
	ev     *bundle.StatusEvent
}

// storeStatuses stores statuses in one transaction, in the order in which they
// came for each bundle.
func (s *Server) storeStatuses(ctx context.Context, items []statusItem) error {
	byID := map[string][]*bundle.StatusEvent{}
	for i := range items {
		ev := &items[i].ev
		byID[ev.Record.ID] = append(byID[ev.Record.ID], ev)
	}
	ids := make([]string, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)

	var outcomes []outcome
	ctx = store.WithActor(ctx, store.Actor{Principal: s.agentPrincipal(items)})
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		outcomes = outcomes[:0]
		known, err := ledger.LockSequences(ctx, tx, ids)
		if err != nil {
			return err
		}
		var acks []ledger.Acknowledgement
		for _, id := range ids {
			o, err := s.storeBundleStatuses(ctx, tx, id, known[id], byID[id])
			if err != nil {
				return err
			}
			if o.acked {
				acks = append(acks, o.ack)
			}
			outcomes = append(outcomes, o)
		}
		if len(acks) == 0 {
			return nil
		}
		return ledger.RecordAcknowledgements(ctx, tx, acks)
	})
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		s.reportOutcome(ctx, o)
	}
	return nil
}

// agentPrincipal names the agent in the history; a transaction that several
// share is the server's.
func (s *Server) agentPrincipal(items []statusItem) string {
	for _, item := range items[1:] {
		if item.ev.Topic != items[0].ev.Topic {
			return "system:maestro"
		}
	}
	return items[0].ev.Topic
}

// storeBundleStatuses applies a bundle's statuses, one after the other.
func (s *Server) storeBundleStatuses(
	ctx context.Context,
	tx *store.Tx,
	id, sequence string,
	events []*bundle.StatusEvent,
) (outcome,
	error) {
	o := outcome{id: id, consumer: events[0].Topic, ack: ledger.Acknowledgement{ID: id}}
	above := int64(0)
	d, _, err := tx.Update(ctx, bundle.Kind, id, 0, func(d *store.Document) error {
		have, err := bundle.StatusOf(*d)
		if err != nil {
			return err
		}
		for _, ev := range events {
			v := bundle.DecideStatus(*d, have, sequence, *ev, s.opts.SourceID)
			if v.Drop != "" {
				o.drops = append(o.drops, drop{v.Drop, ev})
				if v.Drop == bundle.DropFuture {
					above = max(above, ev.Record.Version)
				}
				if v.Resend {
					o.lost = &delivery.Work{Consumer: d.Scope, ID: d.ID, Generation: d.Generation}
				}
				continue
			}
			o.acked = true
			o.ack.Generation = max(o.ack.Generation, v.Acknowledges)
			if ev.Record.Sequence != "" {
				sequence = ev.Record.Sequence
				o.ack.Sequence = sequence
			}
			if v.Acknowledges == d.Generation {
				o.ack.ReceivedAt, o.ack.AppliedAt = ev.ReceivedAt, ev.AppliedAt
				o.ack.Hash = ev.Record.Hash // the agent's, also for content that we have
			}
			if v.Replace || v.Remove {
				spec, err := bundle.SpecOf(*d)
				if err != nil {
					return err
				}
				have = ev.Record
				have.Offset = spec.Offset
				if o.ack.Hash, err = bundle.HashOf(have); err != nil {
					return err
				}
				if d.Status, err = bundle.Marshal(have); err != nil {
					return err
				}
			}
			if v.Remove {
				o.removed, o.ack.Gone = true, true
				return nil // what follows is of a work that is no more
			}
		}
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		for _, ev := range events {
			if ev.Deleted {
				if ok, err := ledger.ConfirmDeletion(ctx, tx, ev.Topic, id); ok || err != nil {
					return o, err
				}
			}
			o.drops = append(o.drops, drop{bundle.DropUnknown, ev})
		}
		return o, nil
	}
	if err != nil {
		return o, err
	}
	if o.removed {
		return o, tx.Remove(ctx, bundle.Kind, id, 0)
	}
	if o.lost != nil {
		if err := ledger.LowerAcknowledged(
			ctx,
			tx,
			[]ledger.Work{{ID: id, Generation: d.Generation}},
			nil,
			0,
		); err != nil {
			return o, err
		}
	}
	if above > 0 {
		raised, ok, err := raiseGeneration(ctx, tx, d, above)
		if err != nil {
			return o, err
		}
		if ok {
			o.raised = &raised
		}
	}
	return o, nil
}

// settled tells those who wait what the commit made of a bundle.
func (s *Server) reportOutcome(ctx context.Context, o outcome) {
	for _, d := range o.drops {
		d.ev.Dropped = d.reason
		s.metrics.dropped.WithLabelValues(d.reason).Inc()
		level := slog.LevelDebug
		if d.reason == bundle.DropConsumer || d.reason == bundle.DropSource {
			level = slog.LevelWarn
		}
		s.log.LogAttrs(ctx, level, "status dropped", slog.String("reason", d.reason),
			slog.String("consumer", d.ev.Topic),
			slog.String("bundle", d.ev.Record.ID), slog.Int64("generation", d.ev.Record.Version))
	}
	if o.acked {
		for _, d := range s.deliverers() {
			if o.removed {
				d.forgetRemoved(o.consumer, o.id, o.ack.Generation)
			} else {
				d.acknowledge(o.consumer, o.id, o.ack.Generation)
			}
		}
	}
	if o.lost != nil {
		s.resend(ctx, *o.lost)
	}
	if o.raised != nil {
		s.log.LogAttrs(ctx, slog.LevelInfo, "bundle raised above its agent's generation",
			slog.String("consumer", o.consumer),
			slog.String("bundle", o.id), slog.Int64("generation", o.raised.Generation))
	}
}

// resend has a work sent again, by the server that delivers to its consumer.
func (s *Server) resend(ctx context.Context, w delivery.Work) {
	if d := s.carrierOf(w.Consumer); d != nil && d.reaches(w.Consumer) {
		d.resend(w)
		return
	}
	if s.delivery == nil {
		return // the agent asks when it comes
	}
	if err := s.hintDelivery(ctx, w.Consumer); err != nil { // the holder's next comparison finds the work
		s.log.LogAttrs(ctx, slog.LevelDebug, "a deliverer is not told of a work", slog.String("consumer", w.Consumer),
			slog.Any("error", err))
	}
}

// maxRaise bounds how far an agent's word moves a generation.
const maxRaise = 1 << 40

// raiseGeneration gives a bundle a generation above one that its agent already has. That
// happens when our database was put back, or made anew from what the sources
// know (I8): agents take no generation that is lower than theirs, not even a
// deletion, and what they hold at that one may be other than what is wanted.
func raiseGeneration(ctx context.Context, tx *store.Tx, d store.Document, above int64) (store.Document, bool, error) {
	if d.Generation > above || above > maxRaise {
		return d, false, nil
	}
	var spec bundle.Spec
	d, _, err := tx.Update(ctx, bundle.Kind, d.ID, 0, func(d *store.Document) error {
		var err error
		if spec, err = bundle.SpecOf(*d); err != nil {
			return err
		}
		spec.Version = spec.VersionAt(d.Generation) // the source has not changed it
		d.Generation = above + 1
		spec.Offset = d.Generation - spec.Version
		d.Spec, err = bundle.Marshal(spec)
		return err
	})
	if err != nil {
		return d, false, err
	}
	return d, true, ledger.Want(ctx, tx, d, spec)
}

// handleAgentEvent takes one event of an agent's topic.
func (s *Server) handleAgentEvent(ctx context.Context, topic string, m bus.Event, ack func()) {
	consumer, ok := s.consumerOf(topic)
	if !ok {
		s.dropEvent(ctx, "bad_topic", topic, m, nil)
		ack()
		return
	}
	if claimed := m.Extensions[work.ExtClusterName]; claimed != consumer {
		s.dropEvent(ctx, bundle.DropConsumer, consumer, m, nil)
		ack()
		return
	}
	s.recordContact(consumer)
	if s.isAnsweredElsewhere(consumer, m.Type) {
		ack()
		return
	}
	s.handleEvent(ctx, consumer, m, ack)
}

// isAnsweredElsewhere says that another server takes an event that all servers
// hear, as they do without a shared subscription. Statuses all take: the first
// one counts. A comparison is answered by who delivers, or the agent would get
// as many answers as there are servers, and what it lacks as many times. One
// that comes while nobody delivers is lost; who begins to has all compare.
func (s *Server) isAnsweredElsewhere(consumer, kind string) bool {
	if s.opts.Topics.AgentEvents.Group != "" || s.delivery.reaches(consumer) {
		return false
	}
	switch kind {
	case work.SpecResync, work.AgentDigest, work.AgentWorks, work.AgentSpec:
		return true
	}
	return false
}

// handleEvent takes an event that is certain to be of the consumer's agent. It
// calls ack once, when nothing of the event can get lost any more. It says
// whether the event's type is known.
func (s *Server) handleEvent(ctx context.Context, consumer string, m bus.Event, ack func()) (known bool) {
	switch m.Type {
	case work.StatusUpdate, work.StatusResyncResponse:
		s.ingest.put(statusItem{consumer: consumer, m: m, ack: ack})
	case work.SpecResync:
		var list work.SpecVersions
		if err := rest.DecodeJSON(m.Data, &list); err != nil {
			s.dropEvent(ctx, bundle.DropMalformed, consumer, m, err)
			ack()
			return true
		}
		s.resyncs.put(resyncRequest{consumer: consumer, kind: m.Type, versions: list.Versions,
			digests: m.Extensions[work.ExtDigests] != "", ack: ack}, len(m.Data))
	case work.AgentDigest:
		r := resyncRequest{consumer: consumer, kind: m.Type, ack: ack}
		if err := rest.DecodeJSON(m.Data, &r.digest); err != nil {
			s.dropEvent(ctx, bundle.DropMalformed, consumer, m, err)
			ack()
			return true
		}
		s.resyncs.put(r, len(m.Data))
	case work.AgentWorks:
		r := resyncRequest{consumer: consumer, kind: m.Type, ack: ack}
		err := rest.DecodeJSON(m.Data, &r.works)
		if err == nil {
			err = checkBuckets(r.works)
		}
		if err != nil {
			s.dropEvent(ctx, bundle.DropMalformed, consumer, m, err)
			ack()
			return true
		}
		s.resyncs.put(r, len(m.Data))
	case work.AgentSpec:
		s.resyncs.put(resyncRequest{consumer: consumer, kind: m.Type, spec: m, ack: ack}, len(m.Data))
	case work.Seen:
		ack()
	default:
		s.dropEvent(ctx, "unknown_type", consumer, m, nil)
		ack()
		return false
	}
	return true
}

func (s *Server) dropEvent(ctx context.Context, reason, consumer string, m bus.Event, err error) {
	s.metrics.dropped.WithLabelValues(reason).Inc()
	s.log.LogAttrs(ctx, slog.LevelWarn, "event dropped", slog.String("reason", reason),
		slog.String("consumer", consumer),
		slog.String("type", strings.ToValidUTF8(m.Type[:min(len(m.Type), 128)], "")), slog.Any("error", err))
}
