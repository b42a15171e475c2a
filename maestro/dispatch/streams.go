package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pause"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// streams has the open streams of this server to agents, and
// the deliverer for their consumers.
//
// The server that has an agent's stream delivers to its consumer; there is no
// lease. The delivery machine has lanes for subscribed consumers only. When an
// agent subscribes, its lane is filled from the ledger. When the stream ends, the
// lane is dropped; the ledger keeps the unacknowledged works. The server reads
// changes from the feed, so a source may publish, and a status may arrive, at any
// server. An agent that is subscribed at two servers for a while receives a work
// twice, which is harmless.
type streams struct {
	o        Options
	delivery *deliverer

	mu      sync.Mutex // taken before delivery.mu
	streams map[work.Consumer]*Stream
}

// Stream is the queue of events to one agent. Its reader calls Take after each token of Woken, until Ended is closed.
type Stream struct {
	woken chan struct{} // holds a token when there is something to send
	ended chan struct{} // closed when the stream must end; reason has the error

	mu     sync.Mutex
	queue  []*cloudevents.CloudEvent
	bytes  int
	reason error
}

const streamBytes = 16 << 20 // size of one agent's queue

var (
	ErrReplaced  = errors.New("another subscription of the same cluster took its place")
	errNoStream  = errors.New("the agent is not subscribed here")
	errFullQueue = errors.New("the agent reads too slowly")
)

func newStreams(o Options) *streams {
	a := &streams{o: o, streams: map[work.Consumer]*Stream{}}
	a.delivery = newDeliverer(o, a.send)
	a.delivery.served = map[work.Consumer]bool{}
	a.delivery.machine.Connect()
	return a
}

// subscribe implements Dispatcher.Subscribe.
func (a *streams) subscribe(consumer work.Consumer) *Stream {
	st := &Stream{woken: make(chan struct{}, 1), ended: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.streams[consumer]; old != nil {
		old.end(ErrReplaced)
	}
	a.streams[consumer] = st
	a.delivery.startServing(consumer)
	return st
}

// unsubscribe implements Dispatcher.Unsubscribe.
func (a *streams) unsubscribe(consumer work.Consumer, st *Stream) {
	st.end(errNoStream)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams[consumer] == st {
		delete(a.streams, consumer)
		a.delivery.stopServing(consumer)
	}
}

// subscribed returns the names of the consumers that have a stream.
func (a *streams) subscribed() []work.Consumer {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := make([]work.Consumer, 0, len(a.streams))
	for name := range a.streams {
		names = append(names, name)
	}
	return names
}

// send is the Send for agents that connect by gRPC. It queues the message and
// calls done at once. When the queue is lost, as messages in a broker can be, the
// unacknowledged works are sent again.
func (a *streams) send(_ context.Context, consumer work.Consumer, encode func() (bus.Event, error),
	done func(error)) error {
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
func (st *Stream) put(e *cloudevents.CloudEvent) error {
	size := proto.Size(e)
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.reason != nil:
		return st.reason
	case len(st.queue) > 0 && st.bytes+size > streamBytes:
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

// Take removes and returns the next event, or returns nil.
func (st *Stream) Take() *cloudevents.CloudEvent {
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
func (st *Stream) end(reason error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.reason == nil {
		st.reason = reason
		st.queue, st.bytes = nil, 0
		close(st.ended)
	}
}

// Woken returns a channel that has a token when the queue has events.
func (st *Stream) Woken() <-chan struct{} { return st.woken }

// Ended returns a channel that is closed when the stream has ended; Reason then returns why.
func (st *Stream) Ended() <-chan struct{} { return st.ended }

// Reason returns the reason why the stream ended, or nil.
func (st *Stream) Reason() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.reason
}

// run passes changes from the feed to the machine. Every reloadEvery it adds the unacknowledged works of
// the ledger, in case a change was lost between the two.
func (a *streams) run(ctx context.Context) error {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := a.follow(ctx, tick.C); err != nil {
			a.o.Logger.LogAttrs(ctx, slog.LevelWarn, "delivery to streams was interrupted", slog.Any("error", err))
			pause.For(ctx, leaseInterval)
		}
	}
	return nil
}

// follow applies changes of the feed until ctx ends, and fails when the feed or a reload does.
func (a *streams) follow(ctx context.Context, tick <-chan time.Time) error {
	sub := a.o.Feed.Subscribe(
		func(c *store.Change) bool { return c.Kind == bundle.Kind && a.delivery.reaches(work.Consumer(c.Scope)) },
	)
	defer sub.Close()
	if err := a.loadPending(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			if err := a.loadPending(ctx); err != nil {
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

// loadPending adds the unacknowledged works of all subscribed consumers to the machine.
func (a *streams) loadPending(ctx context.Context) error {
	names := a.subscribed()
	if len(names) == 0 {
		return nil
	}
	return a.delivery.loadPending(ctx, names...)
}

// startServing begins a consumer's lane anew and empty. The caller then fills the lane from the ledger.
func (d *deliverer) startServing(consumer work.Consumer) {
	d.update(func(m *delivery.Machine) {
		d.dropLane(m, consumer)
		d.served[consumer] = true
	})
}

// stopServing drops a consumer's lane.
func (d *deliverer) stopServing(consumer work.Consumer) {
	d.update(func(m *delivery.Machine) {
		d.dropLane(m, consumer)
		delete(d.served, consumer)
	})
}

// dropLane drops all works of a consumer. The caller has the lock.
func (d *deliverer) dropLane(m *delivery.Machine, consumer work.Consumer) {
	m.Drop(consumer)
	for id, doc := range d.fresh {
		if work.Consumer(doc.Scope) == consumer {
			d.takeFresh(id)
		}
	}
}
