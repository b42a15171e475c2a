package maestro

import (
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/wire"
)

// specTopic is the topic of a consumer's works.
func (s *Server) specTopic(consumer string) string {
	return s.opts.Topics.SourceEvents.For(consumer).String()
}

// consumerOf returns the consumer whose topic an event came on.
func (s *Server) consumerOf(topic string) (string, bool) {
	t, ok := s.opts.Topics.AgentEvents.Match(topic)
	if !ok && s.opts.Topics.AgentBroadcast.Kind != "" {
		t, ok = s.opts.Topics.AgentBroadcast.Match(topic)
	}
	return t.Consumer, ok
}

// checkSize refuses a bundle that the broker would not take.
func (s *Server) checkSize(r bundle.Spec) error {
	if s.bus == nil || s.bus.Limit() == 0 {
		return nil
	}
	return wire.CheckSize(r, s.opts.SourceID, s.specTopic(r.Consumer), s.bus.Limit())
}
