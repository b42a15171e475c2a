package maestro

import (
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/wire"
)

// specTopic returns the topic of a consumer's works.
func (s *Server) specTopic(consumer string) string {
	return s.opts.Topics.SourceEvents.For(consumer).String()
}

// consumerOf returns the consumer in an event's topic.
func (s *Server) consumerOf(topic string) (string, bool) {
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
