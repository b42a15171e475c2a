package rpcapi

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/dispatch"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/maestro/wire"
)

// unaskedAfter is the time in which an agent sends a comparison after it subscribed. An agent that sends none gets its
// unacknowledged works.
const unaskedAfter = 2 * time.Second

// agentPort implements CloudEventService for agents.
type agentPort struct {
	cloudevents.UnimplementedCloudEventServiceServer
	*api
	in Agents
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
	done := g.publishing()
	kind := "other"
	defer func() { done(kind, err) }()
	m, err := wire.FromProto(req.GetEvent())
	if err != nil {
		return nil, g.status("failed to decode event", err)
	}
	consumer := work.Consumer(m.Extensions[work.ExtClusterName])
	if err := checkCluster(consumer); err != nil {
		return nil, g.status("failed to decode event", err)
	}
	if err := g.o.Auth.Authorize(ctx, rpcauth.Publish, rpcauth.Clusters, string(consumer)); err != nil {
		return nil, g.status("not allowed", err)
	}
	g.in.RecordContact(consumer)
	switch m.Type {
	case work.StatusUpdate, work.StatusResyncResponse:
		kind = "status"
		err = g.in.Intake.Store(ctx, consumer, m)
	default:
		if m.Type == work.SpecResync {
			kind = "resync"
		}
		taken := make(chan struct{})
		if !g.in.Intake.Handle(ctx, consumer, m, func() { close(taken) }) {
			return nil, g.status(
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
		return nil, g.status(doing, err)
	}
	return &emptypb.Empty{}, nil
}

// checkCluster refuses a missing or malformed cluster name.
func checkCluster(name work.Consumer) error {
	if name == "" {
		return apierror.Invalid("extension %s is missing; it is the consumer's name", work.ExtClusterName)
	}
	return bundle.CheckConsumerName(name)
}

// Subscribe streams the works of one cluster, and heartbeats.
func (g *agentPort) Subscribe(req *cloudevents.SubscriptionRequest, stream eventStream) error {
	g.o.Metrics.Called.WithLabelValues("Subscribe").Inc()
	consumer := work.Consumer(req.GetClusterName())
	const doing = "failed to subscribe"
	if consumer == "" {
		return g.status(doing, apierror.Invalid("the subscription names no cluster_name"))
	}
	if err := bundle.CheckConsumerName(consumer); err != nil {
		return g.status(doing, err)
	}
	if t := req.GetDataType(); t != work.DataType {
		return g.status(
			doing,
			apierror.Invalid("the subscription is to data_type %.200q; %s is served", t, work.DataType),
		)
	}
	ctx := stream.Context()
	if err := g.o.Auth.Authorize(ctx, rpcauth.Subscribe, rpcauth.Clusters, string(consumer)); err != nil {
		return g.status("not allowed", err)
	}
	st := g.in.Streams.Subscribe(consumer)
	defer g.in.Streams.Unsubscribe(consumer, st)
	g.in.RecordContact(consumer)
	g.o.Logger.LogAttrs(ctx, slog.LevelInfo, "agent subscribed", slog.String("consumer", string(consumer)))
	return g.serveStream(
		stream,
		rpcauth.Clusters,
		string(consumer),
		st.Ended(),
		st.Reason,
		func(ctx context.Context, o *eventSender) error {
			return g.write(ctx, consumer, st, o)
		},
	)
}

// write sends queued events and heartbeats until ctx ends or a send fails. An agent that has
// sent no comparison within unaskedAfter gets its unacknowledged works.
func (g *agentPort) write(ctx context.Context, consumer work.Consumer, st *dispatch.Stream, o *eventSender) error {
	heartbeat := time.NewTicker(g.o.Heartbeat)
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
			if err := g.in.Streams.SendPending(ctx, consumer); err != nil {
				return status.Error(codes.Unavailable, "the database is unavailable; reconnect")
			}
		case <-st.Woken():
			for e := st.Take(); e != nil; e = st.Take() {
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
				g.o.Metrics.Sent.Inc()
			}
		}
	}
}
