package maestro

import (
	"context"
	"log/slog"
	"strings"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/bundle"
)

// handleAgentEvent handles an event from an agent's topic. It drops an event that names another consumer.
func (s *Server) handleAgentEvent(ctx context.Context, topic string, m bus.Event, ack func()) {
	consumer, ok := s.consumerOf(topic)
	if !ok {
		s.dropEvent(ctx, "bad_topic", topic, m, nil)
		ack()
		return
	}
	if claimed := m.Extensions[work.ExtClusterName]; claimed != consumer {
		s.dropEvent(ctx, bundle.DropConsumer, consumer, m, nil)
		ack()
		return
	}
	s.recordContact(consumer)
	if s.isAnsweredElsewhere(consumer, m.Type) {
		ack()
		return
	}
	s.handleEvent(ctx, consumer, m, ack)
}

// isAnsweredElsewhere reports whether another server answers an event. Without a shared
// subscription every server receives every event. All servers store a status: the first
// one counts. Only the server that delivers to the consumer answers a comparison, or the
// agent would receive the answer and the missing works from each server. A comparison that
// arrives while no server delivers is lost; a server that begins to deliver has all agents
// compare again.
func (s *Server) isAnsweredElsewhere(consumer, kind string) bool {
	if s.opts.Topics.AgentEvents.Group != "" || s.delivery.reaches(consumer) {
		return false
	}
	switch kind {
	case work.SpecResync, work.AgentDigest, work.AgentWorks, work.AgentSpec:
		return true
	}
	return false
}

// handleEvent queues an event that is proven to come from the consumer's agent. It
// arranges that ack is called once, when the event's effect is committed or the event
// is dropped. It returns false for an unknown type.
func (s *Server) handleEvent(ctx context.Context, consumer string, m bus.Event, ack func()) (known bool) {
	switch m.Type {
	case work.StatusUpdate, work.StatusResyncResponse:
		s.ingest.put(statusItem{consumer: consumer, m: m, ack: ack})
	case work.SpecResync:
		var list work.SpecVersions
		if err := rest.DecodeJSON(m.Data, &list); err != nil {
			s.dropEvent(ctx, bundle.DropMalformed, consumer, m, err)
			ack()
			return true
		}
		s.resyncs.put(resyncRequest{consumer: consumer, kind: m.Type, versions: list.Versions,
			digests: m.Extensions[work.ExtDigests] != "", ack: ack}, len(m.Data))
	case work.AgentDigest:
		r := resyncRequest{consumer: consumer, kind: m.Type, ack: ack}
		if err := rest.DecodeJSON(m.Data, &r.digest); err != nil {
			s.dropEvent(ctx, bundle.DropMalformed, consumer, m, err)
			ack()
			return true
		}
		s.resyncs.put(r, len(m.Data))
	case work.AgentWorks:
		r := resyncRequest{consumer: consumer, kind: m.Type, ack: ack}
		err := rest.DecodeJSON(m.Data, &r.works)
		if err == nil {
			err = checkBuckets(r.works)
		}
		if err != nil {
			s.dropEvent(ctx, bundle.DropMalformed, consumer, m, err)
			ack()
			return true
		}
		s.resyncs.put(r, len(m.Data))
	case work.AgentSpec:
		s.resyncs.put(resyncRequest{consumer: consumer, kind: m.Type, spec: m, ack: ack}, len(m.Data))
	case work.Seen:
		ack()
	default:
		s.dropEvent(ctx, "unknown_type", consumer, m, nil)
		ack()
		return false
	}
	return true
}

// dropEvent counts and logs an event that the server does not handle.
func (s *Server) dropEvent(ctx context.Context, reason, consumer string, m bus.Event, err error) {
	s.metrics.dropped.WithLabelValues(reason).Inc()
	s.log.LogAttrs(ctx, slog.LevelWarn, "event dropped", slog.String("reason", reason),
		slog.String("consumer", consumer),
		slog.String("type", strings.ToValidUTF8(m.Type[:min(len(m.Type), 128)], "")), slog.Any("error", err))
}
