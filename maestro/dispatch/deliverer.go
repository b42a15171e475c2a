package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/internal/pause"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// deliverer executes the decisions of a delivery.Machine: it reads works from the store and
// publishes them, many at a time.
//
// Over the broker, one server delivers to a consumer: the holder of the consumer's slot; see
// slots.go. That server reads unacknowledged works from the ledger and new works from the feed.
// Another server that finds missing works when it answers an agent's comparison leaves a hint in
// the database for the holder. To agents that subscribed by gRPC, the server that has their
// stream delivers, through a second deliverer; see streams.
type deliverer struct {
	o          Options
	send       Send
	woken      chan struct{}
	publishing chan struct{} // has a token for each publisher that runs

	mu      sync.Mutex
	machine *delivery.Machine
	fresh   map[work.ID]store.Document // documents from the feed that are not sent yet
	bytes   int                        // size of fresh
	served  map[work.Consumer]bool     // consumers with a stream; nil: the consumers of leased, or all
	leased  *heldSlots                 // slots of the broker's deliverer; nil for the deliverer to streams

	reloadNow  chan struct{} // has a token when a reload is requested
	reloadAll  bool
	reloadSome map[work.Consumer]bool

	attempts chan ledger.Attempt
}

const (
	deliverBatch      = 64       // most works of one publisher
	publishers        = 8        // most publishers at the same time
	freshBytes        = 32 << 20 // most bytes of documents from the feed in memory
	reloadEvery       = 30 * time.Second
	reloadRetry       = 250 * time.Millisecond // pause after a failed reload; doubles
	attemptFlushEvery = 100 * time.Millisecond
)

func newDeliverer(o Options, send Send) *deliverer {
	return &deliverer{
		o: o, send: send, woken: make(chan struct{}, 1), publishing: make(chan struct{}, publishers),
		machine: delivery.New(o.Times), fresh: map[work.ID]store.Document{},
		attempts: make(chan ledger.Attempt, 4096), reloadNow: make(chan struct{}, 1), reloadSome: map[work.Consumer]bool{},
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
func (d *deliverer) acknowledge(consumer work.Consumer, id work.ID, generation int64) {
	d.update(func(m *delivery.Machine) { m.Acknowledge(consumer, id, generation) })
}

// forgetRemoved drops a work whose bundle is removed.
func (d *deliverer) forgetRemoved(consumer work.Consumer, id work.ID, generation int64) {
	d.update(func(m *delivery.Machine) {
		m.Forget(delivery.Work{Consumer: consumer, ID: id, Generation: generation, Deleting: true})
		d.discardFresh(id, generation)
	})
}

// keepFresh keeps a document from the feed, when there is room, so that the publisher
// need not read it. The caller has the lock.
func (d *deliverer) keepFresh(doc store.Document) {
	d.takeFresh(work.ID(doc.ID))
	if size := docSize(doc); d.bytes+size <= freshBytes {
		d.fresh[work.ID(doc.ID)] = doc
		d.bytes += size
	}
}

// takeFresh removes and returns a document from fresh. The caller has the lock.
func (d *deliverer) takeFresh(id work.ID) (store.Document, bool) {
	doc, ok := d.fresh[id]
	if ok {
		delete(d.fresh, id)
		d.bytes -= docSize(doc)
	}
	return doc, ok
}

// discardFresh removes a document from fresh unless its generation is later. The caller has the lock.
func (d *deliverer) discardFresh(id work.ID, generation int64) {
	if doc, ok := d.fresh[id]; ok && doc.Generation <= generation {
		d.takeFresh(id)
	}
}

// recordContact notes that an event of the consumer's agent arrived.
func (d *deliverer) recordContact(consumer work.Consumer) {
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
func (d *deliverer) serves(consumer work.Consumer) bool {
	if d.leased != nil {
		return d.leased.serves(consumer)
	}
	return d.served == nil || d.served[consumer]
}

// maySend reports whether the deliverer's lease allows to send now. The caller has the lock.
func (d *deliverer) maySend() bool { return d.leased == nil || time.Now().Before(d.leased.until) }

// countPending counts the unacknowledged works and those of them that were sent.
func (d *deliverer) countPending() (works, ahead int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Pending()
}

// reaches reports whether the deliverer delivers to a consumer. It takes the lock.
func (d *deliverer) reaches(consumer work.Consumer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serves(consumer)
}

// applyComparison passes the result of a resync comparison to the machine. The lane of a new
// subscription is empty, so applyComparison first adds the works that the agent holds
// and has not acknowledged; then Postpone can postpone their repetition.
func (d *deliverer) applyComparison(consumer work.Consumer, c ledger.Comparison) {
	now := time.Now()
	d.update(func(m *delivery.Machine) {
		if !d.serves(consumer) {
			return
		}
		if d.served != nil {
			for _, h := range c.Pending {
				m.Add(h)
			}
		}
		for _, h := range c.Received {
			m.Postpone(now, consumer, h.ID, h.Generation)
		}
		for _, h := range c.Send {
			m.Resend(h)
		}
	})
}

// run starts publishers for due works until ctx ends, then waits for the running publishers.
func (d *deliverer) run(ctx context.Context) error {
	var group errgroup.Group
	defer group.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for d.startPublisher(ctx, &group) {
		}
		d.mu.Lock()
		at, ok := d.machine.NextWake()
		d.mu.Unlock()
		if !ok || len(d.publishing) == cap(d.publishing) { // a publisher that ends wakes this loop
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

// startPublisher starts one publisher, if a work is due and a slot is free. It reports whether it did.
func (d *deliverer) startPublisher(ctx context.Context, group *errgroup.Group) bool {
	select {
	case d.publishing <- struct{}{}:
	default:
		return false // a publisher that ends wakes run
	}
	d.mu.Lock()
	sends := d.machine.Next(time.Now(), deliverBatch)
	docs := make(map[work.ID]store.Document, len(sends))
	for _, send := range sends {
		doc, ok := d.takeFresh(send.ID)
		if ok && send.Attempt == 1 && doc.Generation >= send.Generation && (doc.DeletedAt != nil || !send.Deleting) {
			docs[send.ID] = doc
		}
	}
	d.mu.Unlock()
	if len(sends) == 0 {
		<-d.publishing
		return false
	}
	group.Go(func() error {
		defer d.wake()
		defer func() { <-d.publishing }()
		d.publish(ctx, sends, docs)
		return nil
	})
	return true
}

// errStale ends the publish of a work that changed, or that another server delivers now.
var errStale = errors.New("the work has changed, or another server delivers it")

// runFollow fills the machine until ctx ends: first with the unacknowledged works of the
// ledger, then with changes from the feed. Every reloadEvery it reads the ledger again,
// in case a change was lost between the two. After an error of the ledger or the feed the
// machine keeps its works, and runFollow starts again.
func (d *deliverer) runFollow(ctx context.Context) error {
	for wait := reloadRetry; ; wait = min(2*wait, reloadEvery) {
		begun := time.Now()
		err := d.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begun) > reloadEvery {
			wait = reloadRetry
		}
		d.o.Logger.LogAttrs(ctx, slog.LevelWarn, "following the feed for delivery failed; comparing with the ledger again",
			slog.Any("error", err))
		if !pause.For(ctx, wait) {
			return nil
		}
	}
}

// follow applies changes from the feed. When a reload is requested, and every reloadEvery, it reads the
// unacknowledged works from the ledger.
func (d *deliverer) follow(ctx context.Context) error {
	sub := d.o.Feed.Subscribe(func(c *store.Change) bool { return c.Kind == bundle.Kind })
	defer sub.Close()
	if err := d.loadPending(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := d.loadPending(ctx); err != nil {
				return err
			}
		case <-d.reloadNow:
			if err := d.reloadRequested(ctx); err != nil {
				d.requestReload() // a request must not get lost
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

// loadPending reads unacknowledged works from the ledger and adds them to the machine: those of the
// named consumers, or of all when none is named.
func (d *deliverer) loadPending(ctx context.Context, consumers ...work.Consumer) error {
	return d.o.Ledger.PendingWorks(ctx, func(page []ledger.PendingWork) {
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
			if !d.serves(work.Consumer(doc.Scope)) {
				continue
			}
			if doc.Removed {
				m.RecordContact(work.Consumer(doc.Scope))
				m.Forget(delivery.Work{Consumer: work.Consumer(doc.Scope), ID: work.ID(doc.ID), Generation: doc.Generation,
					Deleting: true})
				d.discardFresh(work.ID(doc.ID), doc.Generation)
				continue
			}
			_, status, err := bundle.RecordsOf(c)
			if err == nil && doc.DeletedAt == nil && status.Version == doc.Generation {
				m.RecordContact(work.Consumer(doc.Scope)) // another server may have taken the status
				m.Acknowledge(work.Consumer(doc.Scope), work.ID(doc.ID), doc.Generation)
				d.discardFresh(work.ID(doc.ID), doc.Generation)
				continue
			}
			if m.Add(ledger.WorkOf(doc)) {
				d.keepFresh(doc)
			}
		}
	})
}
