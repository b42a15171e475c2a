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

// deliverer does what a delivery.Machine decides: it reads the works, and
// publishes them, many at a time.
//
// Over the broker each consumer has one server that delivers to it, the one that holds its slot;
// see slots.go. It knows what is unacknowledged from the ledger and what is new from the feed. A
// server that finds, in an agent's comparison, that the agent of another one's consumer lacks works
// tells that server. To agents that subscribed by gRPC delivers the server that has their stream,
// through a deliverer of its own; see agents.
type deliverer struct {
	s     *Server
	send  sendFunc
	woken chan struct{}
	slots chan struct{} // publishers that may run

	mu      sync.Mutex
	machine *delivery.Machine
	fresh   map[string]store.Document // of the feed, until they are sent
	bytes   int                       // of fresh
	served  map[string]bool           // consumers that it delivers to; nil: to those of leased, or to all
	leased  *heldSlots                // of the broker's deliverer; nil: of another

	compareNow  chan struct{} // has a token when something is to be compared at once
	compareAll  bool
	compareSome map[string]bool

	attempts chan ledger.Attempt
}

// sendFunc sends a message to a consumer's agent. It waits until the carrier has
// room, and then calls encode for the event; when encode fails nothing is sent.
// It calls done once, when the carrier has the message, or is known not to have
// it, or does not say so in time; when it returns an error it does not.
type sendFunc func(ctx context.Context, consumer string, encode func() (bus.Event, error), done func(error)) error

const (
	deliverBatch      = 64       // works of one publisher
	publishers        = 8        // at the same time
	freshBytes        = 32 << 20 // what is kept so that it need not be read again
	compareEvery      = 30 * time.Second
	compareRetry      = 250 * time.Millisecond // after a comparison failed; doubled each time
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

// with changes the machine and has what follows from it done.
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

// keep and take are for fresh, under the lock: what the feed brought is kept,
// as far as there is room, until it is sent or not wanted any more.
func (d *deliverer) keepFresh(doc store.Document) {
	d.takeFresh(doc.ID)
	if size := docSize(doc); d.bytes+size <= freshBytes {
		d.fresh[doc.ID] = doc
		d.bytes += size
	}
}

func (d *deliverer) takeFresh(id string) (store.Document, bool) {
	doc, ok := d.fresh[id]
	if ok {
		delete(d.fresh, id)
		d.bytes -= docSize(doc)
	}
	return doc, ok
}

// discard takes a document out of fresh unless it is of a later generation.
func (d *deliverer) discardFresh(id string, generation int64) {
	if doc, ok := d.fresh[id]; ok && doc.Generation <= generation {
		d.takeFresh(id)
	}
}

func (d *deliverer) recordContact(consumer string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machine.Heard(consumer)
}

func (d *deliverer) resend(w delivery.Work) {
	d.update(func(m *delivery.Machine) {
		if d.serves(w.Consumer) {
			m.Resend(w)
		}
	})
}

// serves says whether the deliverer delivers to a consumer. The caller has the
// lock.
func (d *deliverer) serves(consumer string) bool {
	if d.leased != nil {
		return d.leased.serves(consumer)
	}
	return d.served == nil || d.served[consumer]
}

// maySend says whether it may send now. The caller has the lock.
func (d *deliverer) maySend() bool { return d.leased == nil || time.Now().Before(d.leased.until) }

// run publishes what is due, until ctx ends and what is under way is done.
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
		if !ok || len(d.slots) == cap(d.slots) { // what is due waits for a publisher that ends, and wakes us
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

// dispatch starts one publisher, if there is something to publish and a slot.
func (d *deliverer) dispatch(ctx context.Context, group *errgroup.Group) bool {
	select {
	case d.slots <- struct{}{}:
	default:
		return false // a publisher that ends wakes us
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

// workOf is the work that a document asks for.
func workOf(doc store.Document) delivery.Work {
	return delivery.Work{Consumer: doc.Scope, ID: doc.ID, Generation: doc.Generation, Deleting: doc.DeletedAt != nil}
}

// publish hands a batch to the carrier, which has room for it by and by. It does
// not wait until the carrier acknowledges: acknowledgements that are lost would
// stop delivery. docs has the documents that need not be read.
func (d *deliverer) publish(ctx context.Context, sends []delivery.Send, docs map[string]store.Document) {
	over, err := d.load(ctx, sends, docs)
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
	again := map[string][]string{} // consumer -> what it may have already
	for _, send := range sends {
		doc, ok := docs[send.ID]
		if !ok {
			d.update(func(m *delivery.Machine) {
				m.Forget(over[send.ID])
				m.Sent(time.Now(), send, send.Work, delivery.NotSent)
			})
			continue
		}
		if d.publishOne(ctx, send, doc) && send.Attempt > 1 && !send.Deleting {
			again[send.Consumer] = append(again[send.Consumer], send.ID)
		}
	}
	for consumer, ids := range again {
		d.s.asks.add(consumer, ids)
	}
}

// errStale ends a publish of what is not wanted any more.
var errStale = errors.New("the work has changed, or another server delivers it")

// publishOne hands one work to the carrier. Whatever happened while it waited for
// room, it looks once more before the message leaves: a create must not follow
// its own deletion (I9).
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

func (d *deliverer) isCurrent(send delivery.Send, published delivery.Work) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serves(send.Consumer) && d.maySend() && d.machine.IsCurrent(send, published)
}

// load reads the works that docs lacks. What is repeated is first looked up in
// the ledger: another server may have taken the acknowledgement. Works that need
// not be sent are not in docs then; over says up to what they are settled.
func (d *deliverer) load(ctx context.Context, sends []delivery.Send, docs map[string]store.Document) (
	over map[string]delivery.Work, err error) {
	over = make(map[string]delivery.Work, len(sends))
	var missing, again []string
	for _, send := range sends {
		over[send.ID] = send.Work // unless it is found, its document is removed
		if _, ok := docs[send.ID]; !ok {
			missing = append(missing, send.ID)
		}
		if send.Attempt > 1 {
			again = append(again, send.ID)
		}
	}
	if len(missing) == 0 {
		return over, nil
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
	if len(again) == 0 {
		return over, nil
	}
	snaps, err := d.s.ledger.Snapshots(ctx, again)
	if err != nil {
		return nil, err
	}
	for _, id := range again {
		doc, ok := docs[id]
		snap := snaps[id]
		if ok && (snap.Gone || doc.DeletedAt == nil && snap.Acknowledged >= doc.Generation) {
			over[id] = workOf(doc)
			delete(docs, id)
		}
	}
	return over, nil
}

// sent takes the end of a publish that began then. The carrier calls it and waits.
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

// notSent takes a publish that the carrier did not begin. One that it will refuse
// each time is repeated with back-off, as one that got lost.
func (d *deliverer) handleUnsent(send delivery.Send, doc store.Document, begun time.Time, err error) {
	outcome := delivery.Lost
	for _, passing := range []error{errStale, bus.ErrDisconnected, errNoStream, errFullQueue, context.Canceled,
		context.DeadlineExceeded} {
		if errors.Is(err, passing) {
			outcome = delivery.NotSent
		}
	}
	d.update(func(m *delivery.Machine) { m.Sent(time.Now(), send, workOf(doc), outcome) })
	if !errors.Is(err, errStale) {
		d.recordAttempt(doc, begun, err)
	}
}

// note has a publish recorded.
func (d *deliverer) recordAttempt(doc store.Document, begun time.Time, err error) {
	attempt := ledger.Attempt{ID: doc.ID, Generation: doc.Generation, Deleting: doc.DeletedAt != nil, At: begun}
	if err != nil {
		attempt.Err = err.Error()
	}
	select {
	case d.attempts <- attempt:
	default: // the record of attempts is less dear than the attempts
	}
}

// runAttemptLog writes down what was sent, many at once.
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

// runFollow learns what is to be delivered, until ctx ends: first what the ledger
// has unacknowledged, then what changes. From time to time it compares with the
// ledger, in case a message between the two was lost. An error of a comparison or
// of the feed drops nothing of what is known: the comparison is made again.
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
		d.s.log.LogAttrs(ctx, slog.LevelWarn, "what is to be delivered is compared again", slog.Any("error", err))
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// follow takes changes from the feed, and compares with the ledger.
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
				d.requestCompare() // what was asked for must not get lost
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

// compare takes what the ledger has unacknowledged: of all consumers, or of
// these.
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

// changed takes changes of the feed. A change of status only is none here.
func (d *deliverer) applyChanges(changes []*store.Change) {
	d.update(func(m *delivery.Machine) {
		for _, c := range changes {
			doc := c.Document
			if !d.serves(doc.Scope) {
				continue
			}
			if doc.Removed {
				m.Heard(doc.Scope)
				m.Forget(delivery.Work{Consumer: doc.Scope, ID: doc.ID, Generation: doc.Generation, Deleting: true})
				d.discardFresh(doc.ID, doc.Generation)
				continue
			}
			_, status, err := bundle.RecordsOf(c)
			if err == nil && doc.DeletedAt == nil && status.Version == doc.Generation {
				m.Heard(doc.Scope) // another server may have taken the status
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
