package maestro

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/maestro/wire"
)

// agentPort implements CloudEventService for agents.
type agentPort struct {
	cloudevents.UnimplementedCloudEventServiceServer
	s *Server
}

// Publish handles an event of an agent. It returns from a status after the commit, so
// an agent that repeats events without an answer loses nothing (I6). It returns from a
// resync request when the comparison is recorded; the differing works are sent on the
// stream.
//
// Outcomes: nil also for a status that is older than the stored one, or about a removed
// work, since the agent need not do anything; InvalidArgument for a malformed event;
// PermissionDenied for an event of another cluster; FailedPrecondition for a status of a
// work of another cluster or of another source.
func (g *agentPort) Publish(ctx context.Context, req *cloudevents.PublishRequest) (_ *emptypb.Empty, err error) {
	const doing = "failed to handle event"
	done := g.s.metrics.publishing()
	kind := "other"
	defer func() { done(kind, err) }()
	m, err := wire.FromProto(req.GetEvent())
	if err != nil {
		return nil, g.s.grpcError("failed to decode event", err)
	}
	consumer := m.Extensions[work.ExtClusterName]
	if err := checkCluster(consumer); err != nil {
		return nil, g.s.grpcError("failed to decode event", err)
	}
	if err := g.s.auth.Authorize(ctx, rpcauth.Publish, rpcauth.Clusters, consumer); err != nil {
		return nil, g.s.grpcError("not allowed", err)
	}
	g.s.recordContact(consumer)
	switch m.Type {
	case work.StatusUpdate, work.StatusResyncResponse:
		kind = "status"
		err = g.status(ctx, consumer, m)
	default:
		if m.Type == work.SpecResync {
			kind = "resync"
		}
		taken := make(chan struct{})
		if !g.s.handleEvent(ctx, consumer, m, func() { close(taken) }) {
			return nil, g.s.grpcError(
				"failed to decode event",
				apierror.BadRequest("unsupported event type %.200q", m.Type),
			)
		}
		select {
		case <-taken:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return nil, g.s.grpcError(doing, err)
	}
	return &emptypb.Empty{}, nil
}

// checkCluster refuses a missing or malformed cluster name.
func checkCluster(name string) error {
	if name == "" {
		return apierror.Invalid("extension %s is missing; it is the consumer's name", work.ExtClusterName)
	}
	return bundle.CheckConsumerName(name)
}

// status queues a status and waits until it is stored or dropped.
func (g *agentPort) status(ctx context.Context, consumer string, m bus.Event) error {
	ev, err := wire.DecodeStatus(consumer, m)
	if err != nil {
		g.s.dropEvent(ctx, bundle.DropMalformed, consumer, m, err)
		return apierror.Invalid("%s", err)
	}
	m.Data = nil
	dropReason := make(chan string, 1)
	item := statusItem{consumer: consumer, m: m, ev: ev, ack: func() { dropReason <- "" }, refused: func(reason string) {
		dropReason <- reason
	}}
	if err := g.s.ingest.putWait(ctx, item); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case reason := <-dropReason:
		switch reason {
		case bundle.DropMalformed:
			return apierror.Invalid("the status cannot be stored")
		case bundle.DropConsumer:
			return rest.Errorf(http.StatusPreconditionFailed, apierror.CodeForbidden, "bundle %s is not on cluster %s",
				ev.Record.ID, consumer)
		case bundle.DropSource:
			return rest.Errorf(
				http.StatusPreconditionFailed,
				apierror.CodeForbidden,
				"bundle %s has another source than %q",
				ev.Record.ID,
				ev.Record.OriginalSource,
			)
		}
		return nil
	}
}

// Subscribe streams the works of one cluster, and heartbeats.
func (g *agentPort) Subscribe(req *cloudevents.SubscriptionRequest, stream eventStream) error {
	g.s.metrics.grpcCalled.WithLabelValues("Subscribe").Inc()
	consumer := req.GetClusterName()
	const doing = "failed to subscribe"
	if consumer == "" {
		return g.s.grpcError(doing, apierror.Invalid("the subscription names no cluster_name"))
	}
	if err := bundle.CheckConsumerName(consumer); err != nil {
		return g.s.grpcError(doing, err)
	}
	if t := req.GetDataType(); t != work.DataType {
		return g.s.grpcError(
			doing,
			apierror.Invalid("the subscription is to data_type %.200q; %s is served", t, work.DataType),
		)
	}
	ctx := stream.Context()
	if err := g.s.auth.Authorize(ctx, rpcauth.Subscribe, rpcauth.Clusters, consumer); err != nil {
		return g.s.grpcError("not allowed", err)
	}
	st := g.s.agents.join(consumer)
	defer g.s.agents.leave(consumer, st)
	g.s.recordContact(consumer)
	g.s.log.LogAttrs(ctx, slog.LevelInfo, "agent subscribed", slog.String("consumer", consumer))
	return g.s.serveStream(
		stream,
		rpcauth.Clusters,
		consumer,
		st.ended,
		st.err,
		func(ctx context.Context, o *eventSender) error {
			return g.write(ctx, consumer, st, o)
		},
	)
}

// write sends queued events and heartbeats until ctx ends or a send fails. An agent that has
// sent no comparison within unaskedAfter gets its unacknowledged works.
func (g *agentPort) write(ctx context.Context, consumer string, st *agentStream, o *eventSender) error {
	heartbeat := time.NewTicker(g.s.opts.Heartbeat)
	defer heartbeat.Stop()
	unasked := time.NewTimer(unaskedAfter)
	defer unasked.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-heartbeat.C:
			if err := o.sendHeartbeat(); err != nil {
				return err
			}
		case <-unasked.C:
			if err := g.s.agents.delivery.compare(ctx, consumer); err != nil {
				return status.Error(codes.Unavailable, "the database is unavailable; reconnect")
			}
		case <-st.woken:
			for e := st.take(); e != nil; e = st.take() {
				select {
				case <-heartbeat.C:
					if err := o.sendHeartbeat(); err != nil {
						return err
					}
				default:
				}
				if err := o.send(e); err != nil {
					return err
				}
				g.s.metrics.streamed.Inc()
			}
		}
	}
}
