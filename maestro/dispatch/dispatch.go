// Package dispatch sends works to the agents of management clusters, until the agents acknowledge them.
//
// It executes the decisions of package delivery: it reads works from the store, publishes them by MQTT or on the gRPC
// streams of agents, and records the attempts in the ledger. Over the broker, one of the servers that share a database
// sends to a consumer: the holder of the consumer's slot. To an agent that subscribed by gRPC, the server that has the
// stream sends.
//
// Only package maestro and its packages import it.
package dispatch

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// Send sends a message to a consumer's agent. It waits until the carrier has
// room, and then calls encode for the event. When encode fails, Send sends
// nothing and returns the error. When Send returns nil, it calls done exactly
// once: with nil when the carrier has the message, with an error when the carrier
// refused it or did not answer in time. When Send returns an error, it never
// calls done.
type Send func(ctx context.Context, consumer work.Consumer, encode func() (bus.Event, error), done func(error)) error

// Options are the parameters of New. All are needed, and Broker or Streams.
type Options struct {
	Store  *store.Store
	Ledger *ledger.Ledger
	Feed   *store.Broadcast

	Broker  Send   // sends by MQTT; nil: no agents connect by MQTT
	Streams bool   // agents connect by gRPC
	DSN     string // of the store's database; a session of its own there has the lease of the slots

	SourceID string
	Life     func() string   // returns the database's life, which each work carries
	Times    delivery.Config // of each Machine
	// Repeated is called after works were sent to a consumer again.
	Repeated func(consumer work.Consumer, ids []work.ID)
	// Gained is called when this server begins to send to the consumers of further slots.
	Gained func()

	Metrics Metrics
	Logger  *slog.Logger
}

// Metrics are the collectors that a Dispatcher changes.
type Metrics struct {
	Pending     prometheus.Gauge     // works without an acknowledgement, as this server knows
	Ahead       prometheus.Gauge     // those of them that were sent
	Slots       prometheus.Gauge     // slots that this server holds
	Republished prometheus.Counter   // works sent again
	Latency     prometheus.Histogram // seconds from a change's commit to its first publish
}

// Dispatcher sends works to all agents that this server reaches. It is safe for concurrent use.
type Dispatcher struct {
	o       Options
	broker  *deliverer // nil without a broker
	streams *streams   // nil when no agents connect by gRPC
}

// New returns a Dispatcher that sends nothing until Run.
func New(o Options) *Dispatcher {
	d := &Dispatcher{o: o}
	if o.Broker != nil {
		d.broker = newDeliverer(o, o.Broker)
		d.broker.leased = &heldSlots{}
	}
	if o.Streams {
		d.streams = newStreams(o)
	}
	return d
}

// Run sends works until ctx ends or a part fails.
func (d *Dispatcher) Run(ctx context.Context) error {
	parts, ctx := errgroup.WithContext(ctx)
	part := func(run func(context.Context) error) { parts.Go(func() error { return run(ctx) }) }
	for _, each := range d.deliverers() {
		part(each.run)
		part(each.runAttemptLog)
	}
	if d.broker != nil {
		part(d.runSlots)
		part(d.broker.runFollow)
	}
	if d.streams != nil {
		part(d.streams.run)
	}
	part(d.runGauges)
	return parts.Wait()
}

// Connect starts sending over the broker, whose connection stands.
func (d *Dispatcher) Connect() { d.broker.connected() }

// Disconnect stops sending over the broker, whose connection ended.
func (d *Dispatcher) Disconnect() { d.broker.disconnected() }

// deliverers returns the deliverers of this server: over MQTT, over gRPC.
func (d *Dispatcher) deliverers() []*deliverer {
	var ds []*deliverer
	if d.broker != nil {
		ds = append(ds, d.broker)
	}
	if d.streams != nil {
		ds = append(ds, d.streams.delivery)
	}
	return ds
}

// carrierOf returns the deliverer for a consumer: that of its stream, else that of
// the broker, which may be nil.
func (d *Dispatcher) carrierOf(consumer work.Consumer) *deliverer {
	if d.streams != nil {
		if s := d.streams.delivery; s.reaches(consumer) {
			return s
		}
	}
	return d.broker
}

// HoldsSlotOf reports whether this server, of all that share the database, sends to a consumer over the broker.
func (d *Dispatcher) HoldsSlotOf(consumer work.Consumer) bool {
	return d.broker != nil && d.broker.reaches(consumer)
}

// RecordContact notes that an event of a consumer's agent arrived.
func (d *Dispatcher) RecordContact(consumer work.Consumer) {
	for _, each := range d.deliverers() {
		each.recordContact(consumer)
	}
}

// Publish sends a message that is not the delivery of a work, and returns when the
// carrier has it. Without a carrier to the consumer, Publish drops the message:
// the agent sends a comparison when it connects.
func (d *Dispatcher) Publish(ctx context.Context, consumer work.Consumer, m bus.Event) error {
	carrier := d.carrierOf(consumer)
	if carrier == nil {
		return nil
	}
	done := make(chan error, 1)
	if err := carrier.send(ctx, consumer, func() (bus.Event, error) { return m, nil },
		func(err error) { done <- err }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Acknowledge ends the repetitions of a work up to the generation that its agent acknowledged.
func (d *Dispatcher) Acknowledge(consumer work.Consumer, id work.ID, generation int64) {
	for _, each := range d.deliverers() {
		each.acknowledge(consumer, id, generation)
	}
}

// Forget drops a work whose bundle is removed.
func (d *Dispatcher) Forget(consumer work.Consumer, id work.ID, generation int64) {
	for _, each := range d.deliverers() {
		each.forgetRemoved(consumer, id, generation)
	}
}

// Resend sends a work again, or leaves a hint for the server that sends to its consumer.
func (d *Dispatcher) Resend(ctx context.Context, w delivery.Work) {
	if carrier := d.carrierOf(w.Consumer); carrier != nil && carrier.reaches(w.Consumer) {
		carrier.resend(w)
		return
	}
	if d.broker == nil {
		return // the agent sends a comparison when it connects
	}
	// The next comparison of the slot's holder with the ledger finds the work.
	if err := hintDelivery(ctx, d.o, w.Consumer); err != nil {
		d.o.Logger.LogAttrs(ctx, slog.LevelDebug, "the delivering server got no hint about a work",
			slog.String("consumer", string(w.Consumer)), slog.Any("error", err))
	}
}

// ApplyComparison sends the works that an agent lacks, as a comparison with the ledger found. When another server
// sends to the consumer, that server gets a hint instead. Without a carrier to the consumer, ApplyComparison does
// nothing.
func (d *Dispatcher) ApplyComparison(ctx context.Context, consumer work.Consumer, c ledger.Comparison) error {
	carrier := d.carrierOf(consumer)
	switch {
	case carrier == nil:
		return nil
	case !carrier.reaches(consumer):
		return hintDelivery(ctx, d.o, consumer)
	}
	carrier.applyComparison(consumer, c)
	return nil
}

// Subscribe registers a stream to a consumer's agent and starts sending to it. It ends an
// older stream of the consumer: a client reconnects before the server notices that
// the old connection is dead. The caller calls Unsubscribe at the end.
func (d *Dispatcher) Subscribe(consumer work.Consumer) *Stream { return d.streams.subscribe(consumer) }

// Unsubscribe ends a stream, and stops sending to the consumer unless a newer stream has replaced it.
func (d *Dispatcher) Unsubscribe(consumer work.Consumer, s *Stream) {
	d.streams.unsubscribe(consumer, s)
}

// SendPending sends the unacknowledged works of the ledger to a consumer that has a stream.
func (d *Dispatcher) SendPending(ctx context.Context, consumer work.Consumer) error {
	return d.streams.delivery.loadPending(ctx, consumer)
}

const gaugeInterval = 5 * time.Second

// runGauges updates the gauges of unacknowledged works and of sent ones, until ctx ends.
func (d *Dispatcher) runGauges(ctx context.Context) error {
	tick := time.NewTicker(gaugeInterval)
	defer tick.Stop()
	for {
		works, ahead := 0, 0
		for _, each := range d.deliverers() {
			w, a := each.countPending()
			works, ahead = works+w, ahead+a
		}
		d.o.Metrics.Pending.Set(float64(works))
		d.o.Metrics.Ahead.Set(float64(ahead))
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
