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
func ClientID(consumer work.Consumer) string { return string(consumer) + "-agent-client" }

// topics returns the topics of this agent: those of Options.Topics or, without them, of
// the source Maestro.
func (o Options) topics() (bus.Topics, error) {
	t := o.Topics
	if t == (bus.Topics{}) {
		t = bus.TopicsOf(source)
	}
	return t.ForAgent(o.Consumer)
}

// link is the connection of the agent to its server: MQTT or gRPC. It calls
// Agent.receive for each message, and Agent.connected for each new connection.
type link interface {
	// Run connects, and reconnects after each loss, until ctx ends.
	Run(ctx context.Context) error
	// publish sends an event without waiting for the answer. It calls done once:
	// with nil when the other side has accepted the event, else with the error.
	// When publish itself returns an error, it never calls done.
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

// newLink returns the link that the options describe.
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

// connected posts to the core that the link is connected and, when ctx ends with the
// connection, that it is disconnected.
func (a *Agent) connected(ctx context.Context) {
	a.inbox.post(evConnected{})
	<-ctx.Done()
	a.inbox.post(evDisconnected{})
}

// receive posts a message to the core. No message may stop the agent: a message
// that cannot be decoded is acknowledged and dropped.
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
		m.Ack() // only specs are stored
	}
	a.inbox.post(ev)
}

// publish sends an event and calls done with the result.
func (a *Agent) publish(ctx context.Context, e bus.Event, done func(error)) {
	counted := func(err error) {
		a.metrics.sent(e.Type, err)
		done(err)
	}
	if err := a.link.publish(ctx, e, counted); err != nil {
		counted(err)
	}
}

// requestSpecs sends the list of works, so that the server sends newer ones. A lost
// list is sent again with the next comparison.
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

// publishComparison sends an event of a comparison by digests. The next comparison
// makes up for a lost one.
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

// sendStatus sends a status. When it is too large for the broker, it sends the
// status without its feedback values.
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

// publishStatus publishes a status once.
func (a *Agent) publishStatus(ctx context.Context, ev *statusEvent, done func(error)) {
	e, err := a.wire.status(ev)
	if err != nil {
		done(fmt.Errorf("%w: it has no JSON: %w", errRejected, err))
		return
	}
	a.publish(ctx, e, done)
}

// handleStatusResult posts the result of a status to the core.
func (a *Agent) handleStatusResult(ev *statusEvent, err error) {
	sent := evSent{id: ev.id, seq: ev.seq}
	switch {
	case err == nil:
		sent.accepted, sent.hash = true, ev.hash
	case errors.Is(err, errRejected), errors.Is(err, bus.ErrTooLarge):
		sent.accepted = true // sending it again would not help
		a.log.Error("a status is refused and is not sent again", "work", ev.id, "error", err)
	default:
		a.log.Debug("a status is not taken by the broker yet", "work", ev.id, "error", err)
	}
	a.inbox.post(sent)
}
