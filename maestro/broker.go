package maestro

import (
	"context"
	"math"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/wire"
)

// newBus returns the connections to the broker. Run opens them.
func (s *Server) newBus() *bus.Pool {
	o := s.opts
	subscriptions := []string{o.Topics.AgentEvents.Filter()}
	if o.Topics.AgentBroadcast.Kind != "" {
		subscriptions = append(subscriptions, o.Topics.AgentBroadcast.Filter())
	}
	return bus.NewPool(bus.PoolOptions{Connections: o.Connections, Rate: o.PublishRate, Client: bus.ClientOptions{
		Addr:          o.Broker,
		TLS:           o.BrokerTLS,
		Keys:          o.BrokerKeys,
		Username:      o.BrokerUsername,
		Password:      o.BrokerPassword,
		ClientID:      o.BrokerClientID,
		KeepAlive:     o.BrokerTimes.KeepAlive,
		DialTimeout:   o.BrokerTimes.Dial,
		MaxMessage:    o.MaxMessage,
		Subscriptions: subscriptions,
		Handler: func(ctx context.Context, m bus.Message) {
			s.handleMessage(ctx, m.Topic, m.Event, m.Ack)
		},
		OnConnected: s.onConnected,
		Logger:      o.Logger,
		Registerer:  o.Metrics,
	}})
}

// onConnected starts delivery over the broker, has all agents compare, and stops delivery
// when the connection ends.
func (s *Server) onConnected(ctx context.Context) {
	s.dispatch.Connect()
	s.comparer.AskAll()
	<-ctx.Done()
	s.dispatch.Disconnect()
}

// checkAccepting refuses writes when the broker is down for longer than BrokerGrace.
// They could be stored, but their delivery could take any time.
func (s *Server) checkAccepting() error {
	if s.bus != nil && s.bus.DownFor() > s.opts.BrokerGrace {
		return apierror.Unavailable("the message broker is unavailable; try again")
	}
	return nil
}

// sendToBroker is the dispatch.Send for agents that connect by MQTT.
func (s *Server) sendToBroker(
	ctx context.Context,
	consumer work.Consumer,
	encode func() (bus.Event, error),
	done func(error),
) error {
	return s.bus.PublishLate(ctx, s.specTopic(consumer), encode, done)
}

// handleMessage handles an event from an agent's topic. It drops an event that names another consumer.
func (s *Server) handleMessage(ctx context.Context, topic string, m bus.Event, ack func()) {
	consumer, ok := s.consumerOf(topic)
	if !ok {
		s.intake.Drop(ctx, "bad_topic", work.Consumer(topic), m, nil)
		ack()
		return
	}
	if claimed := m.Extensions[work.ExtClusterName]; work.Consumer(claimed) != consumer {
		s.intake.Drop(ctx, bundle.DropConsumer, consumer, m, nil)
		ack()
		return
	}
	s.recordContact(consumer)
	if s.isAnsweredElsewhere(consumer, m.Type) {
		ack()
		return
	}
	s.intake.Handle(ctx, consumer, m, ack)
}

// isAnsweredElsewhere reports whether another server answers an event. Without a shared
// subscription every server receives every event. All servers store a status: the first
// one counts. Only the server that delivers to the consumer answers a comparison, or the
// agent would receive the answer and the missing works from each server. A comparison that
// arrives while no server delivers is lost; a server that begins to deliver has all agents
// compare again.
func (s *Server) isAnsweredElsewhere(consumer work.Consumer, kind string) bool {
	if s.opts.Topics.AgentEvents.Group != "" || s.dispatch.HoldsSlotOf(consumer) {
		return false
	}
	switch kind {
	case work.SpecResync, work.AgentDigest, work.AgentWorks, work.AgentSpec:
		return true
	}
	return false
}

// specTopic returns the topic of a consumer's works.
func (s *Server) specTopic(consumer work.Consumer) string {
	return s.opts.Topics.SourceEvents.For(consumer).String()
}

// consumerOf returns the consumer in an event's topic.
func (s *Server) consumerOf(topic string) (work.Consumer, bool) {
	t, ok := s.opts.Topics.AgentEvents.Match(topic)
	if !ok && s.opts.Topics.AgentBroadcast.Kind != "" {
		t, ok = s.opts.Topics.AgentBroadcast.Match(topic)
	}
	return t.Consumer, ok
}

// checkSize refuses a bundle whose event is too large for the broker.
func (s *Server) checkSize(r bundle.Spec) error {
	if s.bus == nil || s.bus.Limit() == 0 {
		return nil
	}
	return wire.CheckSize(r, s.opts.SourceID, s.specTopic(r.Consumer), s.bus.Limit())
}

// roomForData returns how many bytes of data the broker accepts in the message m to a consumer, besides m's own bytes.
func (s *Server) roomForData(consumer work.Consumer, m bus.Event) (int, error) {
	if s.bus == nil || s.bus.Limit() == 0 {
		return math.MaxInt, nil
	}
	size, err := m.Size(s.specTopic(consumer))
	return s.bus.Limit() - size, err
}
