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

// agents has the streams of the agents that subscribed to this server by gRPC, and
// the deliverer for their consumers.
//
// The server that has an agent's stream delivers to its consumer; there is no
// lease. The delivery machine has lanes for subscribed consumers only. When an
// agent subscribes, its lane is filled from the ledger. When the stream ends, the
// lane is dropped; the ledger keeps the unacknowledged works. The server reads
// changes from the feed, so a source may publish, and a status may arrive, at any
// server. An agent that is subscribed at two servers for a while receives a work
// twice, which is harmless.
type agents struct {
	s        *Server
	delivery *deliverer

	mu      sync.Mutex // taken before delivery.mu
	streams map[string]*agentStream
}

// agentStream is the queue of events to one agent.
type agentStream struct {
	woken chan struct{} // holds a token when there is something to send
	ended chan struct{} // closed when the stream must end; reason has the error

	mu     sync.Mutex
	queue  []*cloudevents.CloudEvent
	bytes  int
	reason error
}

const (
	agentQueueBytes = 16 << 20        // size of one agent's queue
	unaskedAfter    = 2 * time.Second // an agent that sends no comparison until then gets its unacknowledged works
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

// join registers a new stream for a consumer and starts delivery to it. It ends an
// older stream of the consumer: a client reconnects before the server notices that
// the old connection is dead.
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

// leave ends a stream, and stops delivery unless a newer stream has replaced it.
func (a *agents) leave(consumer string, st *agentStream) {
	st.end(errNoStream)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams[consumer] == st {
		delete(a.streams, consumer)
		a.delivery.stopServing(consumer)
	}
}

// subscribed returns the names of the consumers that have a stream.
func (a *agents) subscribed() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := make([]string, 0, len(a.streams))
	for name := range a.streams {
		names = append(names, name)
	}
	return names
}

// send is the sendFunc for agents that connect by gRPC. It queues the message and
// calls done at once. When the queue is lost, as messages in a broker can be, the
// unacknowledged works are sent again.
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

// put queues an event, or returns errFullQueue or the reason why the stream ended.
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

// take removes and returns the next event, or returns nil.
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

// end closes the stream for the reason, once, and drops its queue.
func (st *agentStream) end(reason error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.reason == nil {
		st.reason = reason
		st.queue, st.bytes = nil, 0
		close(st.ended)
	}
}

// err returns the reason why the stream ended, or nil.
func (st *agentStream) err() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.reason
}

// run passes changes from the feed to the machine, and every compareEvery the
// ledger's unacknowledged works, in case a change was lost between the two.
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

// follow applies changes of the feed until ctx ends, and fails when the feed or a comparison does.
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

// compare adds the unacknowledged works of all subscribed consumers to the machine.
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

// applyComparison passes the result of a resync comparison to the machine. When another
// server delivers to the consumer, that server gets a hint instead. The lane of a new
// subscription is empty, so applyComparison first adds the works that the agent holds
// and has not acknowledged; then Received can postpone their repetition.
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

// countPending updates the gauges of unacknowledged works and of works in the windows.
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
