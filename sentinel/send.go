package sentinel

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"atoll.dev/bus"
	"atoll.dev/store"
)

const (
	eventSource = "hyperfleet-sentinel"
	eventType   = "com.redhat.hyperfleet."
)

// outgoing is an event in flight.
type outgoing struct {
	resource *resource
	number   uint64       // of this event of the resource
	kind     *watchedKind // of the resource
	event    bus.Event
	reason   string
	changed  time.Time // the time of the change of the feed that caused the event; else zero
}

// enqueueEvent makes the event of a resource and queues it for publishEvents. changedAt is the time of the
// change if a change of the feed caused the event, else zero.
func (s *Sentinel) enqueueEvent(ctx context.Context, r *resource, doc *store.Document, f Facts, reason string,
	changedAt time.Time) {
	d := s.watched[r.kind]
	data, err := d.rules.Data(ctx, f, reason)
	if err != nil { // a cluster has no owner, for example
		s.log.Debug("the event has no value for a member of its data", "kind", r.kind, "id", r.id, "error", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		id = uuid.New()
	}
	e := bus.Event{
		ID: id.String(), Source: eventSource, Type: eventType + strings.ToLower(string(r.kind)) + ".reconcile",
		DataContentType: "application/json", Data: data, Key: r.id,
	}
	if s.opts.Trace != nil {
		if parent := s.opts.Trace(*doc); parent != "" {
			e.Extensions = map[string]string{"traceparent": parent}
		}
	}
	s.inFlight++
	r.lastEvent++
	s.toPublish <- outgoing{resource: r, number: r.lastEvent, kind: d, event: e, reason: reason, changed: changedAt}
}

// publishEvents publishes queued events until ctx ends, and posts the outcome of each to the loop. The client of the
// bus blocks it while the broker is slow.
func (s *Sentinel) publishEvents(ctx context.Context) {
	for {
		var o outgoing
		select {
		case <-ctx.Done():
			return
		case o = <-s.toPublish:
		}
		done := func(err error) {
			at := time.Now()
			s.mail.post(func() { s.applyPublished(o, err, at) })
		}
		if err := s.client.PublishAsync(ctx, o.kind.topic, o.event, done); err != nil {
			done(err)
		}
	}
}

// applyPublished records the outcome of an event: metrics, a log line for an error that
// is not a lost connection, and the next state of the resource.
func (s *Sentinel) applyPublished(o outgoing, err error, at time.Time) {
	s.inFlight--
	d := o.kind
	if err == nil {
		var delay time.Duration
		if !o.changed.IsZero() {
			delay = max(at.Sub(o.changed), 1)
		}
		s.metrics.countPublished(d, o.reason, delay)
	} else {
		kind := "publish_error"
		if errors.Is(err, bus.ErrDisconnected) {
			kind = "connection_error"
		} else if errors.Is(err, bus.ErrNoSubscriber) {
			kind = "no_subscriber"
		} else if s.warnLimit.Allow() {
			s.log.Warn("the broker did not acknowledge an event; the sentinel sends it again", "kind", o.resource.kind,
				"id", o.resource.id, "error", err)
		}
		s.metrics.brokerErrors.WithLabelValues(d.labels[0], d.labels[1], kind).Inc()
	}
	r := o.resource
	if s.table.all[r.key] != r || r.lastEvent != o.number || !r.Sending {
		return // another replica has the slot now, or a later event of the resource is in flight
	}
	s.table.setState(r, s.policy.ApplyOutcome(r.State, Outcome(err == nil), at))
}
