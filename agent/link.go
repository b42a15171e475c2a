package agent

import (
	"context"
	"errors"
	"fmt"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// source is Maestro's name in topics, unless they are configured.
const source = "maestro"

// ClientID is the MQTT client id that the agent of a consumer uses.
func ClientID(consumer string) string { return consumer + "-agent-client" }

// topics are the agent's own, out of those that were configured.
func (o Options) topics() (bus.Topics, error) {
	t := o.Topics
	if t == (bus.Topics{}) {
		t = bus.TopicsOf(source)
	}
	return t.ForAgent(o.Consumer)
}

// link is the agent's way to its server: MQTT or gRPC. It calls Agent.receive
// with what comes, and Agent.connected each time that it stands anew.
type link interface {
	// Run makes the connection, again and again, until ctx ends.
	Run(ctx context.Context) error
	// publish sends an event and returns; done is called once, when the other
	// side has it or it is known that it has not. When publish returns an error,
	// done is not called.
	publish(ctx context.Context, e bus.Event, done func(error)) error
	Connected() bool
	Check(ctx context.Context) error
}

// mqttLink is the link over a broker.
type mqttLink struct {
	*bus.Client
	topic     string // that the agent writes
	broadcast string // where it asks all sources; "": it asks the one of its topic
}

func (l mqttLink) publish(ctx context.Context, e bus.Event, done func(error)) error {
	topic := l.topic
	if source, ok := e.Extensions[work.ExtOriginalSource]; l.broadcast != "" && e.Type == work.SpecResync && ok &&
		source == "" {
		topic = l.broadcast
	}
	return l.PublishAsync(ctx, topic, e, done)
}

// newLink completes the connection's options by what is the agent's.
func (a *Agent) newLink(o bus.ClientOptions) link {
	if a.o.GRPC != nil {
		return newGRPCLink(*a.o.GRPC, a.o.Consumer, a.receive, a.connected, a.log)
	}
	t, _ := a.o.topics() // New has checked them
	if o.ClientID = a.o.ClientID; o.ClientID == "" {
		o.ClientID = ClientID(a.o.Consumer)
	}
	o.Subscriptions = []string{t.SourceEvents.String()}
	if t.SourceBroadcast.Kind != "" {
		o.Subscriptions = append(o.Subscriptions, t.SourceBroadcast.String())
	}
	o.Handler = a.receive
	o.OnConnected = a.connected
	if o.Logger == nil {
		o.Logger = a.log
	}
	l := mqttLink{Client: bus.NewClient(o), topic: t.AgentEvents.String()}
	if t.AgentBroadcast.Kind != "" {
		l.broadcast = t.AgentBroadcast.String()
	}
	return l
}

// connected lives as long as the connection.
func (a *Agent) connected(ctx context.Context) {
	a.inbox.post(evConnected{})
	<-ctx.Done()
	a.inbox.post(evDisconnected{})
}

// receive hands a message to the core. Nothing that comes over the wire may
// stop the agent: what cannot be read is acknowledged and forgotten.
func (a *Agent) receive(_ context.Context, m bus.Message) {
	ev, err := a.wire.decode(m.Event, m.Ack)
	a.metrics.received(m.Event.Type, err)
	if err != nil {
		m.Ack()
		if _, ok := errors.AsType[unwantedError](err); ok {
			a.log.Debug("an event is not for this agent", "reason", err.Error())
			return
		}
		a.log.Warn("an event cannot be read and is dropped", "id", m.Event.ID, "error", err)
		return
	}
	if _, ok := ev.(evSpec); !ok {
		m.Ack() // nothing of it is kept
	}
	a.inbox.post(ev)
}

// publish sends an event; done is called when the broker has it, or not.
func (a *Agent) publish(ctx context.Context, e bus.Event, done func(error)) {
	counted := func(err error) {
		a.metrics.sent(e.Type, err)
		done(err)
	}
	if err := a.link.publish(ctx, e, counted); err != nil {
		counted(err)
	}
}

// resync asks the server for what is newer. When it is not sent, the next
// connection asks again.
func (a *Agent) requestSpecs(ctx context.Context, known []work.SpecVersion) {
	e, err := a.wire.resync(known)
	if err != nil {
		a.log.Error("the resync has no JSON", "error", err)
		return
	}
	a.publish(ctx, e, func(err error) {
		if err != nil {
			a.log.Warn("the server was not asked for what is new", "error", err)
		}
	})
}

// say sends an event of a comparison. What is lost the next one mends.
func (a *Agent) publishComparison(ctx context.Context, s effPublish) {
	e, err := a.wire.event(s.kind, s.data)
	if err != nil {
		a.log.Error("a comparison has no JSON", "type", s.kind, "error", err)
		return
	}
	a.publish(ctx, e, func(err error) {
		if err != nil {
			a.log.Debug("a comparison is not taken by the broker", "type", s.kind, "error", err)
		}
	})
}

// sendStatus sends a status; one that is too large for the broker goes without
// what is fed back, and says so.
func (a *Agent) sendStatus(ctx context.Context, ev *statusEvent) {
	a.publishStatus(ctx, ev, func(err error) {
		if !errors.Is(err, bus.ErrTooLarge) {
			a.handleStatusResult(ev, err)
			return
		}
		a.log.Warn("a status is larger than the broker takes, its feedback is left out", "work", ev.id, "error", err)
		small := *ev
		small.status = withoutFeedback(ev.status, err)
		a.sender.add(func(ctx context.Context) { // not here: this may be the connection's own goroutine
			a.publishStatus(ctx, &small, func(err error) { a.handleStatusResult(ev, err) })
		})
	})
}

// tell publishes a status once.
func (a *Agent) publishStatus(ctx context.Context, ev *statusEvent, done func(error)) {
	e, err := a.wire.status(ev)
	if err != nil {
		done(fmt.Errorf("%w: it has no JSON: %w", errNotTaken, err))
		return
	}
	a.publish(ctx, e, done)
}

// told takes what became of a status.
func (a *Agent) handleStatusResult(ev *statusEvent, err error) {
	sent := evSent{id: ev.id, seq: ev.seq}
	switch {
	case err == nil:
		sent.accepted, sent.hash = true, ev.hash
	case errors.Is(err, errNotTaken), errors.Is(err, bus.ErrTooLarge):
		sent.accepted = true // sending it again would not help
		a.log.Error("a status is refused and is not sent again", "work", ev.id, "error", err)
	default:
		a.log.Debug("a status is not taken by the broker yet", "work", ev.id, "error", err)
	}
	a.inbox.post(sent)
}
