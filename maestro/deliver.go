package maestro

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// deliverer executes the decisions of a delivery.Machine: it reads works from the store and
// publishes them, many at a time.
//
// Over the broker, one server delivers to a consumer: the holder of the consumer's slot; see
// slots.go. That server reads unacknowledged works from the ledger and new works from the feed.
// Another server that finds missing works when it answers an agent's comparison leaves a hint in
// the database for the holder. To agents that subscribed by gRPC, the server that has their
// stream delivers, through a second deliverer; see agents.
type deliverer struct {
	s     *Server
	send  sendFunc
	woken chan struct{}
	slots chan struct{} // has a token for each publisher that runs

	mu      sync.Mutex
	machine *delivery.Machine
	fresh   map[string]store.Document // documents from the feed that are not sent yet
	bytes   int                       // size of fresh
	served  map[string]bool           // consumers with a stream; nil: the consumers of leased, or all
	leased  *heldSlots                // slots of the broker's deliverer; nil for the deliverer to streams

	compareNow  chan struct{} // has a token when a comparison is requested
	compareAll  bool
	compareSome map[string]bool

	attempts chan ledger.Attempt
}

// sendFunc sends a message to a consumer's agent. It waits until the carrier has
// room, and then calls encode for the event. When encode fails, sendFunc sends
// nothing and returns the error. When sendFunc returns nil, it calls done exactly
// once: with nil when the carrier has the message, with an error when the carrier
// refused it or did not answer in time. When sendFunc returns an error, it never
// calls done.
type sendFunc func(ctx context.Context, consumer string, encode func() (bus.Event, error), done func(error)) error

const (
	deliverBatch      = 64       // most works of one publisher
	publishers        = 8        // most publishers at the same time
	freshBytes        = 32 << 20 // most bytes of documents from the feed in memory
	compareEvery      = 30 * time.Second
	compareRetry      = 250 * time.Millisecond // pause after a failed comparison; doubles
	attemptFlushEvery = 100 * time.Millisecond
	gaugeInterval     = 5 * time.Second
)

func newDeliverer(s *Server, send sendFunc) *deliverer {
	return &deliverer{
		s: s, send: send, woken: make(chan struct{}, 1), slots: make(chan struct{}, publishers),
		machine: delivery.New(delivery.Config{
			Window:    s.opts.Window,
			Base:      s.opts.RetryBase,
			Max:       s.opts.RetryMax,
			DeleteMax: s.opts.DeleteMax,
			Jitter:    rand.Float64,
		}),
		fresh:    map[string]store.Document{},
		attempts: make(chan ledger.Attempt, 4096), compareNow: make(chan struct{}, 1), compareSome: map[string]bool{},
	}
}

func (d *deliverer) wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// update changes the machine under the lock, and wakes run.
func (d *deliverer) update(f func(m *delivery.Machine)) {
	d.mu.Lock()
	f(d.machine)
	d.mu.Unlock()
	d.wake()
}

func (d *deliverer) connected() { d.update(func(m *delivery.Machine) { m.Connect() }) }

func (d *deliverer) disconnected() { d.update(func(m *delivery.Machine) { m.Disconnect() }) }

// acknowledge ends the repetitions of a work up to the generation that its agent acknowledged.
func (d *deliverer) acknowledge(consumer, id string, generation int64) {
	d.update(func(m *delivery.Machine) { m.Acknowledge(consumer, id, generation) })
}

// forgetRemoved drops a work whose bundle is removed.
func (d *deliverer) forgetRemoved(consumer, id string, generation int64) {
	d.update(func(m *delivery.Machine) {
		m.Forget(delivery.Work{Consumer: consumer, ID: id, Generation: generation, Deleting: true})
		d.discardFresh(id, generation)
	})
}

// keepFresh keeps a document from the feed, when there is room, so that the publisher
// need not read it. The caller has the lock.
func (d *deliverer) keepFresh(doc store.Document) {
	d.takeFresh(doc.ID)
	if size := docSize(doc); d.bytes+size <= freshBytes {
		d.fresh[doc.ID] = doc
		d.bytes += size
	}
}

// takeFresh removes and returns a document from fresh. The caller has the lock.
func (d *deliverer) takeFresh(id string) (store.Document, bool) {
	doc, ok := d.fresh[id]
	if ok {
		delete(d.fresh, id)
		d.bytes -= docSize(doc)
	}
	return doc, ok
}

// discardFresh removes a document from fresh unless its generation is later. The caller has the lock.
func (d *deliverer) discardFresh(id string, generation int64) {
	if doc, ok := d.fresh[id]; ok && doc.Generation <= generation {
		d.takeFresh(id)
	}
}

// recordContact notes that an event of the consumer's agent arrived.
func (d *deliverer) recordContact(consumer string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machine.RecordContact(consumer)
}

// resend sends a work again at once, if this deliverer delivers to its consumer.
func (d *deliverer) resend(w delivery.Work) {
	d.update(func(m *delivery.Machine) {
		if d.serves(w.Consumer) {
			m.Resend(w)
		}
	})
}

// serves reports whether the deliverer delivers to a consumer. The caller has the lock.
func (d *deliverer) serves(consumer string) bool {
	if d.leased != nil {
		return d.leased.serves(consumer)
	}
	return d.served == nil || d.served[consumer]
}

// maySend reports whether the deliverer's lease allows to send now. The caller has the lock.
func (d *deliverer) maySend() bool { return d.leased == nil || time.Now().Before(d.leased.until) }

// run starts publishers for due works until ctx ends, then waits for the running publishers.
func (d *deliverer) run(ctx context.Context) error {
	var group errgroup.Group
	defer group.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for d.dispatch(ctx, &group) {
		}
		d.mu.Lock()
		at, ok := d.machine.Wake()
		d.mu.Unlock()
		if !ok || len(d.slots) == cap(d.slots) { // a publisher that ends wakes this loop
			at = time.Now().Add(time.Hour)
		}
		timer.Reset(time.Until(at))
		select {
		case <-ctx.Done():
			return nil
		case <-d.woken:
		case <-timer.C:
		}
	}
}

// dispatch starts one publisher, if a work is due and a slot is free. It reports whether it did.
func (d *deliverer) dispatch(ctx context.Context, group *errgroup.Group) bool {
	select {
	case d.slots <- struct{}{}:
	default:
		return false // a publisher that ends wakes run
	}
	d.mu.Lock()
	sends := d.machine.Next(time.Now(), deliverBatch)
	docs := make(map[string]store.Document, len(sends))
	for _, send := range sends {
		doc, ok := d.takeFresh(send.ID)
		if ok && send.Attempt == 1 && doc.Generation >= send.Generation && (doc.DeletedAt != nil || !send.Deleting) {
			docs[send.ID] = doc
		}
	}
	d.mu.Unlock()
	if len(sends) == 0 {
		<-d.slots
		return false
	}
	group.Go(func() error {
		defer d.wake()
		defer func() { <-d.slots }()
		d.publish(ctx, sends, docs)
		return nil
	})
	return true
}

func docSize(d store.Document) int { return len(d.Spec) + len(d.Status) + len(d.Wire) + 256 }

// workOf returns the work that a document describes.
func workOf(doc store.Document) delivery.Work {
	return delivery.Work{Consumer: doc.Scope, ID: doc.ID, Generation: doc.Generation, Deleting: doc.DeletedAt != nil}
}

// publish passes a batch to the carrier, one work after the other, as the carrier has
// room. It does not wait for the carrier's acknowledgements: a lost one would stop
// delivery. docs has documents from the feed; publish reads the others from the store.
func (d *deliverer) publish(ctx context.Context, sends []delivery.Send, docs map[string]store.Document) {
	finished, err := d.load(ctx, sends, docs)
	if err != nil {
		d.s.log.LogAttrs(ctx, slog.LevelWarn, "works wait for the database", slog.Int("works", len(sends)),
			slog.Any("error", err))
		d.update(func(m *delivery.Machine) {
			for _, send := range sends {
				m.Sent(time.Now(), send, send.Work, delivery.NotSent)
			}
		})
		return
	}
	repeated := map[string][]string{} // consumer -> works that its agent may have
	for _, send := range sends {
		doc, ok := docs[send.ID]
		if !ok {
			d.update(func(m *delivery.Machine) {
				m.Forget(finished[send.ID])
				m.Sent(time.Now(), send, send.Work, delivery.NotSent)
			})
			continue
		}
		if d.publishOne(ctx, send, doc) && send.Attempt > 1 && !send.Deleting {
			repeated[send.Consumer] = append(repeated[send.Consumer], send.ID)
		}
	}
	for consumer, ids := range repeated {
		d.s.asks.add(consumer, ids)
	}
}

// errStale ends the publish of a work that changed, or that another server delivers now.
var errStale = errors.New("the work has changed, or another server delivers it")

// publishOne passes one work to the carrier. When the carrier has room, and before the
// message leaves, publishOne checks that the work is still current: a create must not
// follow its own deletion (I9). It reports whether the carrier took the message.
func (d *deliverer) publishOne(ctx context.Context, send delivery.Send, doc store.Document) (sent bool) {
	begun := time.Now()
	err := d.send(ctx, send.Consumer, func() (bus.Event, error) {
		if !d.isCurrent(send, workOf(doc)) {
			return bus.Event{}, errStale
		}
		begun = time.Now()
		m, err := wire.EncodeSpec(doc, d.s.opts.SourceID)
		if err == nil {
			m.Extensions[work.ExtLife] = d.s.life()
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
func (d *deliverer) load(ctx context.Context, sends []delivery.Send, docs map[string]store.Document) (
	finished map[string]delivery.Work, err error) {
	finished = make(map[string]delivery.Work, len(sends))
	var missing, repeated []string
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
	page, err := d.s.store.List(ctx, store.Query{
		Kind: bundle.Kind, Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{missing}},
		Limit: len(missing), Deletion: store.WithDeleting,
	})
	if err != nil {
		return nil, err
	}
	for _, doc := range page.Documents {
		docs[doc.ID] = doc
	}
	if len(repeated) == 0 {
		return finished, nil
	}
	snaps, err := d.s.ledger.Snapshots(ctx, repeated)
	if err != nil {
		return nil, err
	}
	for _, id := range repeated {
		doc, ok := docs[id]
		snap := snaps[id]
		if ok && (snap.Gone || doc.DeletedAt == nil && snap.Acknowledged >= doc.Generation) {
			finished[id] = workOf(doc)
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
		d.s.metrics.deliveryLatency.Observe(now.Sub(doc.UpdatedAt).Seconds())
	default:
		d.s.metrics.republished.Inc()
	}
	d.update(func(m *delivery.Machine) { m.Sent(now, send, workOf(doc), outcome) })
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
	d.update(func(m *delivery.Machine) { m.Sent(time.Now(), send, workOf(doc), outcome) })
	if !errors.Is(err, errStale) {
		d.recordAttempt(doc, begun, err)
	}
}

// recordAttempt queues the record of a publish for runAttemptLog. It does not wait.
func (d *deliverer) recordAttempt(doc store.Document, begun time.Time, err error) {
	attempt := ledger.Attempt{ID: doc.ID, Generation: doc.Generation, Deleting: doc.DeletedAt != nil, At: begun}
	if err != nil {
		attempt.Err = err.Error()
	}
	select {
	case d.attempts <- attempt:
	default: // a lost record is better than a delayed delivery
	}
}

// runAttemptLog stores the records of publishes in batches, and updates gauges, until ctx ends.
func (d *deliverer) runAttemptLog(ctx context.Context) error {
	tick := time.NewTicker(attemptFlushEvery)
	defer tick.Stop()
	gauges := time.NewTicker(gaugeInterval)
	defer gauges.Stop()
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
		case <-gauges.C:
			d.s.countPending()
			continue
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
	if err := d.s.ledger.RecordAttempts(ctx, attempts); err != nil {
		d.s.log.LogAttrs(ctx, slog.LevelDebug, "attempts not recorded", slog.Int("attempts", len(attempts)),
			slog.Any("error", err))
	}
}

// runFollow fills the machine until ctx ends: first with the unacknowledged works of the
// ledger, then with changes from the feed. Every compareEvery it reads the ledger again,
// in case a change was lost between the two. After an error of the ledger or the feed the
// machine keeps its works, and runFollow starts again.
func (d *deliverer) runFollow(ctx context.Context) error {
	for wait := compareRetry; ; wait = min(2*wait, compareEvery) {
		begun := time.Now()
		err := d.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begun) > compareEvery {
			wait = compareRetry
		}
		d.s.log.LogAttrs(ctx, slog.LevelWarn, "following the feed for delivery failed; comparing with the ledger again", slog.Any("error", err))
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// follow applies changes from the feed, and compares with the ledger when asked and every compareEvery.
func (d *deliverer) follow(ctx context.Context) error {
	sub := d.s.feed.Subscribe(func(c *store.Change) bool { return c.Kind == bundle.Kind })
	defer sub.Close()
	if err := d.compare(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := d.compare(ctx); err != nil {
				return err
			}
		case <-d.compareNow:
			if err := d.compareRequested(ctx); err != nil {
				d.requestCompare() // a request must not get lost
				return err
			}
		case <-sub.Woken():
			batches, err := sub.Take()
			if err != nil {
				return err
			}
			for _, b := range batches {
				d.applyChanges(b.Changes)
			}
		}
	}
}

// compare adds the ledger's unacknowledged works to the machine: of the named
// consumers, or of all when none is named.
func (d *deliverer) compare(ctx context.Context, consumers ...string) error {
	return d.s.ledger.PendingWorks(ctx, func(page []ledger.PendingWork) {
		d.update(func(m *delivery.Machine) {
			now := time.Now()
			for _, p := range page {
				if d.serves(p.Consumer) {
					m.Recover(now, p.Work, p.Attempts)
				}
			}
		})
	}, consumers...)
}

// applyChanges passes changes of the feed to the machine. A change of the status alone acknowledges
// the work or changes nothing.
func (d *deliverer) applyChanges(changes []*store.Change) {
	d.update(func(m *delivery.Machine) {
		for _, c := range changes {
			doc := c.Document
			if !d.serves(doc.Scope) {
				continue
			}
			if doc.Removed {
				m.RecordContact(doc.Scope)
				m.Forget(delivery.Work{Consumer: doc.Scope, ID: doc.ID, Generation: doc.Generation, Deleting: true})
				d.discardFresh(doc.ID, doc.Generation)
				continue
			}
			_, status, err := bundle.RecordsOf(c)
			if err == nil && doc.DeletedAt == nil && status.Version == doc.Generation {
				m.RecordContact(doc.Scope) // another server may have taken the status
				m.Acknowledge(doc.Scope, doc.ID, doc.Generation)
				d.discardFresh(doc.ID, doc.Generation)
				continue
			}
			if m.Want(workOf(doc)) {
				d.keepFresh(doc)
			}
		}
	})
}
