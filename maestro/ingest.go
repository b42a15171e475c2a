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
	"atoll.dev/maestro/records"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// A few workers store statuses, for all consumers in turn. One worker at a time
// stores the statuses of a consumer, so no worker waits for another's row lock. A
// worker stores the statuses that have arrived, one or many, in one transaction, and
// acknowledges them to the broker after the commit (I6). So a single status is stored
// at once, and in a flood many statuses share one flush to disk.
const (
	ingestWorkers = 4
	ingestBatch   = 128
)

// ingestShares is room for two reports of each of 1,000 works of a consumer.
var ingestShares = fairqueue.Shares{Items: 2048, Bytes: 16 << 20, AllItems: 32 << 10, AllBytes: 128 << 20, Turn: 32}

// statusItem is a status that is not stored yet. ack acknowledges it to the carrier,
// which then does not send it again.
type statusItem struct {
	consumer string
	m        bus.Event
	ack      func()
	refused  func(reason string) // called instead of ack for a dropped status; may be nil
	ev       bundle.StatusEvent  // set when a worker has decoded m
}

// acknowledge calls refused for a dropped status, if the item has it, and ack otherwise.
func (i *statusItem) acknowledge() {
	if i.refused != nil && i.ev.Dropped != "" {
		i.refused(i.ev.Dropped)
		return
	}
	i.ack()
}

// ingest queues the statuses of agents and stores them.
type ingest struct {
	s     *Server
	queue *fairqueue.Queue[statusItem]
}

func newIngest(s *Server) *ingest {
	return &ingest{s: s, queue: fairqueue.New[statusItem](ingestShares)}
}

// put queues a status and never waits, since the broker's connection is not read
// meanwhile. It drops a status that exceeds the consumer's share, also one that would replace a
// smaller one; run asks the agent for its statuses when it has stored the others.
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

// putWait queues a status, and waits until its consumer's share has room or ctx ends.
func (in *ingest) putWait(ctx context.Context, item statusItem) error {
	for {
		roomChanged := in.queue.RoomChanged()
		if _, ok := in.queue.Put(item.consumer, "", 512, item, nil); ok {
			return nil
		}
		select {
		case <-roomChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// key returns the work of a status that a later status may replace in the queue, and
// "" for other statuses. Nothing replaces a report that a work is deleted.
func (i *statusItem) key() string {
	if i.m.Type != work.StatusUpdate || bytes.Contains(i.m.Data, []byte(`"Deleted"`)) {
		return ""
	}
	return i.m.Extensions[work.ExtResourceID]
}

// replaces reports whether the status replaces an older one of its work in the queue:
// both have the same generation and source, and this one has the later sequence.
func (i *statusItem) replaces(old statusItem) bool {
	same := func(ext string) bool { return i.m.Extensions[ext] == old.m.Extensions[ext] }
	return same(work.ExtResourceVersion) && same(work.ExtOriginalSource) && same(work.ExtClusterName) &&
		old.m.Extensions[work.ExtSequenceID] != "" && bundle.IsNewer(i.m.Extensions[work.ExtSequenceID], old.m.Extensions[work.ExtSequenceID])
}

// run stores queued statuses until ctx ends. Several workers run it.
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

// store stores the items in one transaction and acknowledges them. It tries again while
// the database is down. When an item cannot be stored at all, it stores the items one by
// one and drops that item.
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
				// While the database was down, the broker may have dropped
				// statuses that waited for this server.
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

// decode decodes the events, drops malformed ones, and returns the others. Workers do
// it rather than put, so that the broker's connection is read without delay.
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

// transient reports whether the same write can succeed later.
func transient(err error) bool {
	for _, t := range []error{store.ErrUnavailable, store.ErrTimeout, store.ErrConflict, store.ErrFull,
		store.ErrUnknownOutcome, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// sleep waits for d. It returns false at once when ctx ends.
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

// outcome is the result of storing one bundle's statuses.
type outcome struct {
	consumer, id string
	ack          ledger.Acknowledgement
	acked        bool
	removed      bool
	raised       *store.Document // the bundle, when it got a higher generation
	lost         *delivery.Work  // a work that the agent lost, to send again
	drops        []drop
}

type drop struct {
	reason string
	ev     *bundle.StatusEvent
}

// storeStatuses stores statuses in one transaction; those of a bundle in the order of
// their arrival.
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

// agentPrincipal returns the actor for the history: the agent, or the server when the
// statuses come from several agents.
func (s *Server) agentPrincipal(items []statusItem) string {
	for _, item := range items[1:] {
		if item.ev.Topic != items[0].ev.Topic {
			return "system:maestro"
		}
	}
	return items[0].ev.Topic
}

// storeBundleStatuses applies a bundle's statuses in order. sequence is the last one stored.
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
				o.ack.Hash = ev.Record.Hash // the agent's hash, also when the content did not change
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
				return nil // later statuses are about the removed work
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
		raised, ok, err := records.RaiseGeneration(ctx, tx, d, above)
		if err != nil {
			return o, err
		}
		if ok {
			o.raised = &raised
		}
	}
	return o, nil
}

// reportOutcome passes the committed outcome of a bundle to metrics, log and deliverers.
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

// resend sends a work again, or leaves a hint for the server that delivers to its consumer.
func (s *Server) resend(ctx context.Context, w delivery.Work) {
	if d := s.carrierOf(w.Consumer); d != nil && d.reaches(w.Consumer) {
		d.resend(w)
		return
	}
	if s.delivery == nil {
		return // the agent sends a comparison when it connects
	}
	if err := s.hintDelivery(ctx, w.Consumer); err != nil { // the next comparison of the slot's holder finds the work
		s.log.LogAttrs(ctx, slog.LevelDebug, "the delivering server got no hint about a work", slog.String("consumer", w.Consumer),
			slog.Any("error", err))
	}
}

// handleAgentEvent handles an event from an agent's topic. It drops an event that names another consumer.
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

// isAnsweredElsewhere reports whether another server answers an event. Without a shared
// subscription every server receives every event. All servers store a status: the first
// one counts. Only the server that delivers to the consumer answers a comparison, or the
// agent would receive the answer and the missing works from each server. A comparison that
// arrives while no server delivers is lost; a server that begins to deliver has all agents
// compare again.
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

// handleEvent queues an event that is proven to come from the consumer's agent. It
// arranges that ack is called once, when the event's effect is committed or the event
// is dropped. It returns false for an unknown type.
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

// dropEvent counts and logs an event that the server does not handle.
func (s *Server) dropEvent(ctx context.Context, reason, consumer string, m bus.Event, err error) {
	s.metrics.dropped.WithLabelValues(reason).Inc()
	s.log.LogAttrs(ctx, slog.LevelWarn, "event dropped", slog.String("reason", reason),
		slog.String("consumer", consumer),
		slog.String("type", strings.ToValidUTF8(m.Type[:min(len(m.Type), 128)], "")), slog.Any("error", err))
}
