package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

func docSize(d store.Document) int { return len(d.Spec) + len(d.Status) + len(d.Wire) + 256 }

// publish passes a batch to the carrier, one work after the other, as the carrier has
// room. It does not wait for the carrier's acknowledgements: a lost one would stop
// delivery. docs has documents from the feed; publish reads the others from the store.
func (d *deliverer) publish(ctx context.Context, sends []delivery.Send, docs map[work.ID]store.Document) {
	finished, err := d.load(ctx, sends, docs)
	if err != nil {
		d.o.Logger.LogAttrs(ctx, slog.LevelWarn, "works wait for the database", slog.Int("works", len(sends)),
			slog.Any("error", err))
		d.update(func(m *delivery.Machine) {
			for _, send := range sends {
				m.EndSend(time.Now(), send, send.Work, delivery.NotSent)
			}
		})
		return
	}
	repeated := map[work.Consumer][]work.ID{} // consumer -> works that its agent may have
	for _, send := range sends {
		doc, ok := docs[send.ID]
		if !ok {
			d.update(func(m *delivery.Machine) {
				m.Forget(finished[send.ID])
				m.EndSend(time.Now(), send, send.Work, delivery.NotSent)
			})
			continue
		}
		if d.publishOne(ctx, send, doc) && send.Attempt > 1 && !send.Deleting {
			repeated[send.Consumer] = append(repeated[send.Consumer], send.ID)
		}
	}
	for consumer, ids := range repeated {
		d.o.Repeated(consumer, ids)
	}
}

// publishOne passes one work to the carrier. When the carrier has room, and before the
// message leaves, publishOne checks that the work is still current: a create must not
// follow its own deletion (I9). It reports whether the carrier took the message.
func (d *deliverer) publishOne(ctx context.Context, send delivery.Send, doc store.Document) (sent bool) {
	begun := time.Now()
	err := d.send(ctx, send.Consumer, func() (bus.Event, error) {
		if !d.isCurrent(send, ledger.WorkOf(doc)) {
			return bus.Event{}, errStale
		}
		begun = time.Now()
		m, err := wire.EncodeSpec(doc, d.o.SourceID)
		if err == nil {
			m.Extensions[work.ExtLife] = d.o.Life()
		}
		return m, err
	}, func(err error) { d.handleSent(send, doc, begun, err) })
	if err != nil {
		d.handleUnsent(send, doc, begun, err)
	}
	return err == nil
}

// isCurrent reports whether this server may publish the work now.
func (d *deliverer) isCurrent(send delivery.Send, published delivery.Work) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serves(send.Consumer) && d.maySend() && d.machine.IsCurrent(send, published)
}

// load reads the works that docs lacks. It looks up repeated works in the ledger,
// because another server may have stored their acknowledgement. Afterwards docs has
// no works that need not be sent, and finished has the generation up to which each of
// those is acknowledged or removed.
func (d *deliverer) load(ctx context.Context, sends []delivery.Send, docs map[work.ID]store.Document) (
	finished map[work.ID]delivery.Work, err error) {
	finished = make(map[work.ID]delivery.Work, len(sends))
	var missing, repeated []work.ID
	for _, send := range sends {
		finished[send.ID] = send.Work // when the store has no document: the bundle is removed
		if _, ok := docs[send.ID]; !ok {
			missing = append(missing, send.ID)
		}
		if send.Attempt > 1 {
			repeated = append(repeated, send.ID)
		}
	}
	if len(missing) == 0 {
		return finished, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	page, err := d.o.Store.List(ctx, store.Query{
		Kind: bundle.Kind, Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{missing}},
		Limit: len(missing), Deletion: store.WithDeleting,
	})
	if err != nil {
		return nil, err
	}
	for _, doc := range page.Documents {
		docs[work.ID(doc.ID)] = doc
	}
	if len(repeated) == 0 {
		return finished, nil
	}
	snaps, err := d.o.Ledger.Snapshots(ctx, repeated)
	if err != nil {
		return nil, err
	}
	for _, id := range repeated {
		doc, ok := docs[id]
		snap := snaps[id]
		if ok && (snap.Gone || doc.DeletedAt == nil && snap.Acknowledged >= doc.Generation) {
			finished[id] = ledger.WorkOf(doc)
			delete(docs, id)
		}
	}
	return finished, nil
}

// handleSent passes the end of a publish to the machine. The carrier calls it, and waits until it returns.
func (d *deliverer) handleSent(send delivery.Send, doc store.Document, begun time.Time, err error) {
	now := time.Now()
	outcome := delivery.Published
	switch {
	case err != nil:
		outcome = delivery.Lost
	case send.Attempt == 1:
		d.o.Metrics.Latency.Observe(now.Sub(doc.UpdatedAt).Seconds())
	default:
		d.o.Metrics.Republished.Inc()
	}
	d.update(func(m *delivery.Machine) { m.EndSend(now, send, ledger.WorkOf(doc), outcome) })
	d.recordAttempt(doc, begun, err)
}

// handleUnsent passes to the machine that the carrier did not take a work. After a
// temporary error the work is sent again soon; after an error that the carrier will
// return each time, it is repeated with back-off.
func (d *deliverer) handleUnsent(send delivery.Send, doc store.Document, begun time.Time, err error) {
	outcome := delivery.Lost
	for _, temporary := range []error{errStale, bus.ErrDisconnected, errNoStream, errFullQueue, context.Canceled,
		context.DeadlineExceeded} {
		if errors.Is(err, temporary) {
			outcome = delivery.NotSent
		}
	}
	d.update(func(m *delivery.Machine) { m.EndSend(time.Now(), send, ledger.WorkOf(doc), outcome) })
	if !errors.Is(err, errStale) {
		d.recordAttempt(doc, begun, err)
	}
}

// recordAttempt queues the record of a publish for runAttemptLog. It does not wait.
func (d *deliverer) recordAttempt(doc store.Document, begun time.Time, err error) {
	attempt := ledger.Attempt{ID: work.ID(doc.ID), Generation: doc.Generation, Deleting: doc.DeletedAt != nil, At: begun}
	if err != nil {
		attempt.Err = err.Error()
	}
	select {
	case d.attempts <- attempt:
	default: // a lost record is better than a delayed delivery
	}
}

// runAttemptLog stores the records of publishes in batches, until ctx ends.
func (d *deliverer) runAttemptLog(ctx context.Context) error {
	tick := time.NewTicker(attemptFlushEvery)
	defer tick.Stop()
	var attempts []ledger.Attempt
	for {
		select {
		case <-ctx.Done():
			final, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			d.flushAttempts(final, attempts)
			return nil
		case n := <-d.attempts:
			if attempts = append(attempts, n); len(attempts) < 1000 {
				continue
			}
		case <-tick.C:
		}
		d.flushAttempts(ctx, attempts)
		attempts = attempts[:0]
	}
}

func (d *deliverer) flushAttempts(ctx context.Context, attempts []ledger.Attempt) {
	if len(attempts) == 0 {
		return
	}
	if err := d.o.Ledger.RecordAttempts(ctx, attempts); err != nil {
		d.o.Logger.LogAttrs(ctx, slog.LevelDebug, "attempts not recorded", slog.Int("attempts", len(attempts)),
			slog.Any("error", err))
	}
}
