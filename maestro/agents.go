package maestro

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"atoll.dev/api/cloudevents"
	"atoll.dev/bus"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// agents are the consumers whose agents have subscribed to this server by
// gRPC, and their deliveries.
//
// A consumer is delivered to by the server that has its stream, whichever that
// is, with no lease: the machine here holds the lanes of the consumers that
// are subscribed, and of no others. When an agent comes, its lane begins from
// the ledger; when it goes, the lane is dropped, and the ledger still has all
// that is pending. Changes come from the feed, as to everybody, so it makes no
// difference where a source published or an acknowledgement was taken. That an
// agent is for a while subscribed at two servers does no harm: it gets a work
// twice.
type agents struct {
	s        *Server
	delivery *deliverer

	mu      sync.Mutex // taken before delivery.mu
	streams map[string]*agentStream
}

// agentStream is what waits to be sent to one agent.
type agentStream struct {
	woken chan struct{} // holds a token when there is something to send
	ended chan struct{} // closed when the stream is to end, for why

	mu     sync.Mutex
	queue  []*cloudevents.CloudEvent
	bytes  int
	reason error
}

const (
	agentQueueBytes = 16 << 20        // what waits for one agent that reads slowly
	unaskedAfter    = 2 * time.Second // an agent that asks for nothing until then gets what is pending
)

var (
	errReplaced  = errors.New("another subscription of the same cluster took its place")
	errNoStream  = errors.New("the agent is not subscribed here")
	errFullQueue = errors.New("the agent reads too slowly")
)

func newAgents(s *Server) *agents {
	a := &agents{s: s, streams: map[string]*agentStream{}}
	a.delivery = newDeliverer(s, a.send)
	a.delivery.served = map[string]bool{}
	a.delivery.machine.Connect()
	return a
}

// join makes a new stream the consumer's. One that it had is ended: a client
// comes again before the server knows that its old connection is dead.
func (a *agents) join(consumer string) *agentStream {
	st := &agentStream{woken: make(chan struct{}, 1), ended: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.streams[consumer]; old != nil {
		old.end(errReplaced)
	}
	a.streams[consumer] = st
	a.delivery.startServing(consumer)
	return st
}

func (a *agents) leave(consumer string, st *agentStream) {
	st.end(errNoStream)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams[consumer] == st {
		delete(a.streams, consumer)
		a.delivery.stopServing(consumer)
	}
}

func (a *agents) subscribed() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := make([]string, 0, len(a.streams))
	for name := range a.streams {
		names = append(names, name)
	}
	return names
}

// send is the sendFunc of consumers that are reached by gRPC. A message counts
// as sent once it is queued: like a broker's, the queue may be lost, and what
// is not acknowledged comes again.
func (a *agents) send(_ context.Context, consumer string, encode func() (bus.Event, error), done func(error)) error {
	a.mu.Lock()
	st := a.streams[consumer]
	a.mu.Unlock()
	if st == nil {
		return errNoStream
	}
	m, err := encode()
	if err != nil {
		return err
	}
	if err := st.put(wire.ToProto(m)); err != nil {
		return err
	}
	done(nil)
	return nil
}

func (st *agentStream) put(e *cloudevents.CloudEvent) error {
	size := proto.Size(e)
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.reason != nil:
		return st.reason
	case len(st.queue) > 0 && st.bytes+size > agentQueueBytes:
		return errFullQueue
	}
	st.queue = append(st.queue, e)
	st.bytes += size
	select {
	case st.woken <- struct{}{}:
	default:
	}
	return nil
}

// take returns the next event, or nil.
func (st *agentStream) take() *cloudevents.CloudEvent {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.queue) == 0 {
		return nil
	}
	e := st.queue[0]
	st.queue[0] = nil
	st.queue = st.queue[1:]
	st.bytes -= proto.Size(e)
	return e
}

func (st *agentStream) end(reason error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.reason == nil {
		st.reason = reason
		st.queue, st.bytes = nil, 0
		close(st.ended)
	}
}

func (st *agentStream) err() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.reason
}

// run feeds the machine with what changes, and from time to time with what the
// ledger has pending, in case a message between the two was lost.
func (a *agents) run(ctx context.Context) error {
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := a.follow(ctx, tick.C); err != nil {
			a.s.log.LogAttrs(ctx, slog.LevelWarn, "delivery to streams was interrupted", slog.Any("error", err))
			sleep(ctx, leaseInterval)
		}
	}
	return nil
}

func (a *agents) follow(ctx context.Context, tick <-chan time.Time) error {
	sub := a.s.feed.Subscribe(
		func(c *store.Change) bool { return c.Kind == bundle.Kind && a.delivery.reaches(c.Scope) },
	)
	defer sub.Close()
	if err := a.compare(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			if err := a.compare(ctx); err != nil {
				return err
			}
		case <-sub.Woken():
			batches, err := sub.Take()
			if err != nil {
				return err
			}
			for _, b := range batches {
				a.delivery.applyChanges(b.Changes)
			}
		}
	}
}

func (a *agents) compare(ctx context.Context) error {
	names := a.subscribed()
	if len(names) == 0 {
		return nil
	}
	return a.delivery.compare(ctx, names...)
}

// startServing begins a consumer's lane anew and empty. The caller then fills the lane from the ledger.
func (d *deliverer) startServing(consumer string) {
	d.update(func(m *delivery.Machine) {
		d.dropLane(m, consumer)
		d.served[consumer] = true
	})
}

// stopServing drops a consumer's lane.
func (d *deliverer) stopServing(consumer string) {
	d.update(func(m *delivery.Machine) {
		d.dropLane(m, consumer)
		delete(d.served, consumer)
	})
}

// dropLane drops all works of a consumer. The caller has the lock.
func (d *deliverer) dropLane(m *delivery.Machine, consumer string) {
	m.Drop(consumer)
	for id, doc := range d.fresh {
		if doc.Scope == consumer {
			d.takeFresh(id)
		}
	}
}

// reaches reports whether the deliverer delivers to a consumer. It takes the lock.
func (d *deliverer) reaches(consumer string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serves(consumer)
}

// compared takes the result of a resync's comparison. The lane of a new
// subscription is empty: it takes the works that the agent holds and has not
// acknowledged first, so that Received can put their repetition off.
func (d *deliverer) applyComparison(ctx context.Context, consumer string, c ledger.Comparison) error {
	if !d.reaches(consumer) {
		return d.s.hintDelivery(ctx, consumer)
	}
	now := time.Now()
	d.update(func(m *delivery.Machine) {
		if !d.serves(consumer) {
			return
		}
		if d.served != nil {
			for _, h := range c.Pending {
				m.Want(delivery.Work{Consumer: consumer, ID: h.ID, Generation: h.Generation})
			}
		}
		for _, h := range c.Received {
			m.Received(now, consumer, h.ID, h.Generation)
		}
		for _, h := range c.Send {
			m.Resend(delivery.Work{Consumer: consumer, ID: h.ID, Generation: h.Generation, Deleting: h.Deleting})
		}
	})
	return nil
}

// countPending brings the gauges up to date.
func (s *Server) countPending() {
	works, ahead := 0, 0
	for _, d := range s.deliverers() {
		d.mu.Lock()
		w, a := d.machine.Pending()
		d.mu.Unlock()
		works, ahead = works+w, ahead+a
	}
	s.metrics.pending.Set(float64(works))
	s.metrics.ahead.Set(float64(ahead))
}
