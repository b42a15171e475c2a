package maestro

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// deliverer does what a delivery.Machine decides: it reads the works, and
// publishes them, many at a time.
//
// Over the broker one server of a region delivers, the one that holds the
// lease; it knows what is pending from the ledger and what is new from the
// feed. Every server answers its agents' resync requests through its own
// machine. To agents that subscribed by gRPC delivers the server that has
// their stream, through a deliverer of its own; see agents.
type deliverer struct {
	s     *Server
	send  sendFunc
	woken chan struct{}
	slots chan struct{} // publishers that may run

	mu      sync.Mutex
	machine *delivery.Machine
	fresh   map[string]store.Document // of the feed, until they are sent
	bytes   int                       // of fresh
	served  map[string]bool           // consumers that it delivers to; nil: to all

	notes chan sentNote
}

// sendFunc begins to send a message to a consumer's agent. It calls done once,
// when the carrier has the message or is known not to have it; when it returns
// an error it does not.
type sendFunc func(ctx context.Context, consumer string, m message, done func(error)) error

const (
	deliverBatch  = 64       // works of one publisher
	publishers    = 8        // at the same time
	freshBytes    = 32 << 20 // what is kept so that it need not be read again
	compareEvery  = 30 * time.Second
	compactEvery  = 10 * time.Minute
	feedMemory    = 24 * time.Hour // how old a cursor of a watch may be
	noteEvery     = 100 * time.Millisecond
	gaugeInterval = 5 * time.Second
)

func newDeliverer(s *Server, send sendFunc) *deliverer {
	return &deliverer{
		s: s, send: send, woken: make(chan struct{}, 1), slots: make(chan struct{}, publishers),
		machine: delivery.New(delivery.Config{
			Window: s.opts.Window, Base: s.opts.RetryBase, Max: s.opts.RetryMax, DeleteMax: s.opts.DeleteMax, Jitter: rand.Float64,
		}),
		fresh: map[string]store.Document{},
		notes: make(chan sentNote, 4096),
	}
}

func (d *deliverer) wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// with changes the machine and has what follows from it done.
func (d *deliverer) with(f func(m *delivery.Machine)) {
	d.mu.Lock()
	f(d.machine)
	d.mu.Unlock()
	d.wake()
}

func (d *deliverer) connected() { d.with(func(m *delivery.Machine) { m.Connect() }) }

func (d *deliverer) disconnected() { d.with(func(m *delivery.Machine) { m.Disconnect() }) }

func (d *deliverer) acknowledged(consumer, id string, generation int64, gone bool) {
	d.with(func(m *delivery.Machine) {
		if gone {
			m.Forget(consumer, id)
			d.take(id)
			return
		}
		m.Acknowledge(consumer, id, generation)
	})
}

// keep and take are for fresh, under the lock: what the feed brought is kept,
// as far as there is room, until it is sent or not wanted any more.
func (d *deliverer) keep(doc store.Document) {
	d.take(doc.ID)
	if size := docSize(doc); d.bytes+size <= freshBytes {
		d.fresh[doc.ID] = doc
		d.bytes += size
	}
}

func (d *deliverer) take(id string) (store.Document, bool) {
	doc, ok := d.fresh[id]
	if ok {
		delete(d.fresh, id)
		d.bytes -= docSize(doc)
	}
	return doc, ok
}

func (d *deliverer) heard(consumer string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machine.Heard(consumer)
}

func (d *deliverer) resend(w delivery.Work) {
	d.with(func(m *delivery.Machine) {
		if d.serves(w.Consumer) {
			m.Resend(w)
		}
	})
}

// serves is for who has the lock.
func (d *deliverer) serves(consumer string) bool { return d.served == nil || d.served[consumer] }

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
		doc, ok := d.take(send.ID)
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

// publish publishes a batch. docs has those that need not be read.
func (d *deliverer) publish(ctx context.Context, sends []delivery.Send, docs map[string]store.Document) {
	if err := d.load(ctx, sends, docs); err != nil {
		d.s.log.LogAttrs(ctx, slog.LevelWarn, "works wait for the database", slog.Int("works", len(sends)), slog.Any("error", err))
		d.with(func(m *delivery.Machine) {
			for _, send := range sends {
				m.Sent(time.Now(), send.Work, err)
			}
		})
		return
	}
	again := map[string][]string{} // consumer -> what it may have already
	var sent sync.WaitGroup
	for _, send := range sends {
		doc, ok := docs[send.ID]
		if !ok { // acknowledged, or gone
			d.with(func(m *delivery.Machine) { m.Forget(send.Consumer, send.ID) })
			continue
		}
		if send.Attempt > 1 && !send.Deleting {
			again[send.Consumer] = append(again[send.Consumer], send.ID)
		}
		sent.Add(1)
		begun := time.Now()
		done := func(err error) {
			d.sent(send, doc, begun, err)
			sent.Done()
		}
		m, err := encodeSpec(doc, d.s.opts.SourceID, false)
		if err == nil {
			m.ext[work.ExtLife] = d.s.life()
			err = d.send(ctx, send.Consumer, m, done)
		}
		if err != nil {
			done(err)
		}
	}
	sent.Wait()
	// An agent that has the work already says nothing about it when it comes
	// again; what got lost is its status, so that is asked for.
	for consumer, ids := range again {
		if err := d.s.askConsumer(ctx, consumer, ids); err != nil {
			d.s.log.LogAttrs(ctx, slog.LevelDebug, "statuses not asked for", slog.String("consumer", consumer), slog.Any("error", err))
		}
	}
}

// load reads the works that docs lacks. What is repeated is first looked up in
// the ledger: another server may have taken the acknowledgement.
func (d *deliverer) load(ctx context.Context, sends []delivery.Send, docs map[string]store.Document) error {
	var missing, again []string
	for _, send := range sends {
		if _, ok := docs[send.ID]; !ok {
			missing = append(missing, send.ID)
		}
		if send.Attempt > 1 {
			again = append(again, send.ID)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	page, err := d.s.store.List(ctx, store.Query{
		Kind: kindBundle, Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{missing}},
		Limit: len(missing), Deletion: store.WithDeleting,
	})
	if err != nil {
		return err
	}
	for _, doc := range page.Documents {
		docs[doc.ID] = doc
	}
	if len(again) == 0 {
		return nil
	}
	snaps, err := d.s.snapshots(ctx, again)
	if err != nil {
		return err
	}
	for _, id := range again {
		doc, ok := docs[id]
		snap := snaps[id]
		if ok && (snap.gone || doc.DeletedAt == nil && snap.acknowledged >= doc.Generation) {
			delete(docs, id)
		}
	}
	return nil
}

// sent takes the end of a publish that began then. The broker's connection calls it and waits.
func (d *deliverer) sent(send delivery.Send, doc store.Document, begun time.Time, err error) {
	now := time.Now()
	note := sentNote{id: send.ID, generation: doc.Generation, deleting: doc.DeletedAt != nil, at: begun}
	switch {
	case err != nil:
		note.err = err.Error()
	case send.Attempt == 1:
		d.s.metrics.deliveryLatency.Observe(now.Sub(doc.UpdatedAt).Seconds())
	default:
		d.s.metrics.republished.Inc()
	}
	d.mu.Lock()
	d.machine.Sent(now, delivery.Work{Consumer: send.Consumer, ID: send.ID, Generation: doc.Generation, Deleting: doc.DeletedAt != nil}, err)
	d.mu.Unlock()
	select {
	case d.notes <- note:
	default: // the record of attempts is less dear than the attempts
	}
}

// runNotes writes down what was sent, many at once.
func (d *deliverer) runNotes(ctx context.Context) error {
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	gauges := time.NewTicker(gaugeInterval)
	defer gauges.Stop()
	var notes []sentNote
	for {
		select {
		case <-ctx.Done():
			final, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			d.flushNotes(final, notes)
			return nil
		case n := <-d.notes:
			if notes = append(notes, n); len(notes) < 1000 {
				continue
			}
		case <-gauges.C:
			d.s.countPending()
			continue
		case <-tick.C:
		}
		d.flushNotes(ctx, notes)
		notes = notes[:0]
	}
}

func (d *deliverer) flushNotes(ctx context.Context, notes []sentNote) {
	if len(notes) == 0 {
		return
	}
	if err := d.s.noteSent(ctx, notes); err != nil {
		d.s.log.LogAttrs(ctx, slog.LevelDebug, "attempts not recorded", slog.Int("attempts", len(notes)), slog.Any("error", err))
	}
}

// lead does what one server of a region does for all, until ctx ends: it
// delivers over the broker. Without a broker it only tidies up.
func (s *Server) lead(ctx context.Context) error {
	if s.delivery != nil {
		return s.delivery.lead(ctx)
	}
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.tidy(ctx); err != nil {
				return err
			}
		}
	}
}

// lead delivers the region's works until ctx ends or the feed does: first what
// the ledger has pending, then what changes. From time to time it compares
// with the ledger, in case a message between the two was lost.
func (d *deliverer) lead(ctx context.Context) error {
	sub := d.s.feed.Subscribe(func(c *store.Change) bool { return c.Kind == kindBundle })
	defer sub.Close()
	d.s.metrics.delivering.Set(1)
	defer d.s.metrics.delivering.Set(0)
	d.s.leading.Store(true)
	defer d.s.leading.Store(false)
	if d.s.opts.Topics.AgentEvents.Group == "" {
		d.s.askStatuses() // what was compared while nobody delivered nobody answered
	}
	defer d.with(func(m *delivery.Machine) {
		m.Reset()
		d.fresh, d.bytes = map[string]store.Document{}, 0
	})
	if err := d.compare(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	compact := time.NewTicker(compactEvery)
	defer compact.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := d.compare(ctx); err != nil {
				return err
			}
		case <-compact.C:
			if err := d.s.tidy(ctx); err != nil {
				return err
			}
		case <-sub.Woken():
			batches, err := sub.Take()
			if err != nil {
				return err
			}
			for _, b := range batches {
				d.changed(b.Changes)
			}
		}
	}
}

// tidy takes away what nobody can ask for any more.
func (s *Server) tidy(ctx context.Context) error {
	if _, err := s.store.Compact(ctx, time.Now().Add(-feedMemory)); err != nil {
		return err
	}
	return s.purgeTombstones(ctx)
}

// compare takes what the ledger has pending: of all, or of these consumers.
func (d *deliverer) compare(ctx context.Context, consumers ...string) error {
	works, err := d.s.pendingWorks(ctx, consumers...)
	if err != nil {
		return err
	}
	d.with(func(m *delivery.Machine) {
		now := time.Now()
		for _, p := range works {
			if d.serves(p.Consumer) {
				m.Recover(now, p.Work, p.attempts)
			}
		}
	})
	return nil
}

// changed takes changes of the feed. A change of status only is none here.
func (d *deliverer) changed(changes []*store.Change) {
	d.with(func(m *delivery.Machine) {
		for _, c := range changes {
			doc := c.Document
			if !d.serves(doc.Scope) {
				continue
			}
			if doc.Removed {
				m.Forget(doc.Scope, doc.ID)
				d.take(doc.ID)
				continue
			}
			_, status, err := recordsOf(c)
			if err == nil && doc.DeletedAt == nil && status.Version == doc.Generation {
				m.Acknowledge(doc.Scope, doc.ID, doc.Generation) // another server may have taken the status
				d.take(doc.ID)
				continue
			}
			if m.Want(delivery.Work{Consumer: doc.Scope, ID: doc.ID, Generation: doc.Generation, Deleting: doc.DeletedAt != nil}) {
				d.keep(doc)
			}
		}
	})
}
