package intake

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/records"
	"atoll.dev/store"
)

// outcome is the result of storing one bundle's statuses.
type outcome struct {
	consumer work.Consumer
	id       work.ID
	ack      ledger.Acknowledgement
	acked    bool
	removed  bool
	raised   *store.Document // the bundle, when it got a higher generation
	lost     *delivery.Work  // a work that the agent lost, to send again
	replaced bool            // a response to a request replaced the stored status
	drops    []drop
}

type drop struct {
	reason string
	ev     *bundle.StatusEvent
}

// storeStatuses stores statuses in one transaction; those of a bundle in the order of
// their arrival.
func (in *Intake) storeStatuses(ctx context.Context, items []statusItem) error {
	byID := map[work.ID][]*bundle.StatusEvent{}
	for i := range items {
		ev := &items[i].ev
		byID[ev.Record.ID] = append(byID[ev.Record.ID], ev)
	}
	ids := make([]work.ID, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)

	var outcomes []outcome
	ctx = store.WithActor(ctx, store.Actor{Principal: agentPrincipal(items)})
	err := in.o.Store.Tx(ctx, func(tx *store.Tx) error {
		outcomes = outcomes[:0]
		known, err := ledger.LockSequences(ctx, tx, ids)
		if err != nil {
			return err
		}
		var acks []ledger.Acknowledgement
		for _, id := range ids {
			o, err := in.storeBundleStatuses(ctx, tx, id, known[id], byID[id])
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
	replaced := map[work.Consumer][]work.ID{} // ids by consumer
	for _, o := range outcomes {
		in.reportOutcome(ctx, o)
		if o.replaced {
			replaced[o.consumer] = append(replaced[o.consumer], o.id)
		}
	}
	for consumer, ids := range replaced {
		in.o.Resync.AskAgain(consumer, ids)
	}
	return nil
}

// agentPrincipal returns the actor for the history: the agent, or the server when the
// statuses come from several agents.
func agentPrincipal(items []statusItem) string {
	for _, item := range items[1:] {
		if item.ev.Topic != items[0].ev.Topic {
			return "system:maestro"
		}
	}
	return string(items[0].ev.Topic)
}

// storeBundleStatuses applies a bundle's statuses in order. sequence is the last one stored.
func (in *Intake) storeBundleStatuses(
	ctx context.Context,
	tx *store.Tx,
	id work.ID, sequence string,
	events []*bundle.StatusEvent,
) (outcome, error) {
	o := outcome{id: id, consumer: events[0].Topic, ack: ledger.Acknowledgement{ID: id}}
	above := int64(0)
	d, _, err := tx.Update(ctx, bundle.Kind, string(id), 0, func(d *store.Document) (err error) {
		above, err = in.applyStatuses(d, &o, sequence, events)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		err := o.confirmDeletion(ctx, tx, events)
		return o, err
	}
	if err != nil {
		return o, err
	}
	if o.removed {
		return o, tx.Remove(ctx, bundle.Kind, string(id), 0)
	}
	if o.lost != nil {
		if err := ledger.LowerAcknowledged(ctx, tx, []delivery.Work{*o.lost}, nil, 0); err != nil {
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

// applyStatuses sets the status of a bundle's document to that of the last event, and records in o what becomes of each
// event. sequence is the last one stored. above is the highest generation of a status that the bundle has not reached;
// 0: there is none.
func (in *Intake) applyStatuses(d *store.Document, o *outcome, sequence string, events []*bundle.StatusEvent) (
	above int64, err error,
) {
	have, err := bundle.StatusOf(*d)
	if err != nil {
		return 0, err
	}
	for _, ev := range events {
		v := bundle.DecideStatus(*d, have, sequence, *ev, in.o.SourceID)
		if v.Drop != "" {
			o.drops = append(o.drops, drop{v.Drop, ev})
			if v.Drop == bundle.DropFuture {
				above = max(above, ev.Record.Version)
			}
			if v.Resend {
				o.lost = &delivery.Work{Consumer: work.Consumer(d.Scope), ID: work.ID(d.ID), Generation: d.Generation}
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
		if v.Replace && ev.Record.Type == work.StatusResyncResponse {
			o.replaced = true
		}
		if v.Replace || v.Remove {
			spec, err := bundle.SpecOf(*d)
			if err != nil {
				return above, err
			}
			have = ev.Record
			have.Offset = spec.Offset
			if o.ack.Hash, err = bundle.HashOf(have); err != nil {
				return above, err
			}
			if d.Status, err = bundle.Marshal(have); err != nil {
				return above, err
			}
		}
		if v.Remove {
			o.removed, o.ack.Gone = true, true
			return above, nil // later statuses are about the removed work
		}
	}
	return above, nil
}

// confirmDeletion ends a deletion that the ledger has when an event reports it, for a bundle that does not exist. It
// records the events before that as dropped.
func (o *outcome) confirmDeletion(ctx context.Context, tx *store.Tx, events []*bundle.StatusEvent) error {
	for _, ev := range events {
		if ev.Deleted {
			if ok, err := ledger.ConfirmDeletion(ctx, tx, ev.Topic, o.id); ok || err != nil {
				return err
			}
		}
		o.drops = append(o.drops, drop{bundle.DropUnknown, ev})
	}
	return nil
}

// reportOutcome passes the committed outcome of a bundle to metrics, log and delivery.
func (in *Intake) reportOutcome(ctx context.Context, o outcome) {
	for _, d := range o.drops {
		d.ev.Dropped = d.reason
		in.o.Dropped.WithLabelValues(d.reason).Inc()
		level := slog.LevelDebug
		if d.reason == bundle.DropConsumer || d.reason == bundle.DropSource {
			level = slog.LevelWarn
		}
		in.o.Logger.LogAttrs(ctx, level, "status dropped", slog.String("reason", d.reason),
			slog.String("consumer", string(d.ev.Topic)),
			slog.String("bundle", string(d.ev.Record.ID)), slog.Int64("generation", d.ev.Record.Version))
	}
	if o.acked {
		if o.removed {
			in.o.Delivery.Forget(o.consumer, o.id, o.ack.Generation)
		} else {
			in.o.Delivery.Acknowledge(o.consumer, o.id, o.ack.Generation)
		}
	}
	if o.lost != nil {
		in.o.Delivery.Resend(ctx, *o.lost)
	}
	if o.raised != nil {
		in.o.Logger.LogAttrs(ctx, slog.LevelInfo, "bundle raised above its agent's generation",
			slog.String("consumer", string(o.consumer)),
			slog.String("bundle", string(o.id)), slog.Int64("generation", o.raised.Generation))
	}
}
