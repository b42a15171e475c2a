// Package rpcapi is the gRPC API of Maestro: the port for sources and the port for agents.
//
// Both are the CloudEventService of Open Cluster Management. Sources publish works and subscribe to statuses; agents
// publish statuses and comparisons and subscribe to works. Package rpcauth authenticates and authorizes the callers.
//
// Only package maestro and its packages import it.
package rpcapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/dispatch"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/records"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/store"
)

const (
	maxReceive     = 4 << 20
	maxCalls       = 1000 // open calls on one connection
	minClientPing  = 5 * time.Second
	serverPing     = 30 * time.Second
	serverPingWait = 10 * time.Second
)

// Streams has the streams to agents. dispatch.Dispatcher implements it.
type Streams interface {
	// Subscribe registers a stream to a consumer's agent and starts sending to it. It ends an older stream of the
	// consumer.
	Subscribe(consumer work.Consumer) *dispatch.Stream
	// Unsubscribe ends a stream.
	Unsubscribe(consumer work.Consumer, s *dispatch.Stream)
	// SendPending puts the unacknowledged works of the ledger into the consumer's stream.
	SendPending(ctx context.Context, consumer work.Consumer) error
}

// Intake handles the events of agents. intake.Intake implements it.
type Intake interface {
	// Handle queues an event and calls ack once, when its effect is committed or the event is dropped. It returns
	// false for an unknown type.
	Handle(ctx context.Context, consumer work.Consumer, m bus.Event, ack func()) (known bool)
	// Store returns when a status is stored or dropped; an error means that the agent made a mistake.
	Store(ctx context.Context, consumer work.Consumer, m bus.Event) error
}

// Options are the parameters that both services have. All are needed.
type Options struct {
	Auth *rpcauth.Authorizer

	Heartbeat   time.Duration   // interval of heartbeats on streams
	Stuck       time.Duration   // a stream whose client reads nothing for so long is ended
	Recheck     time.Duration   // interval between two authorizations of an open subscription
	Grace       time.Duration   // for running calls when a port stops
	PlainErrors bool            // errors carry the text without a Kubernetes status
	Stopping    <-chan struct{} // closed when streams must end

	Metrics Metrics
	Logger  *slog.Logger
}

// Sources are the further parameters of NewSources. All are needed.
type Sources struct {
	Store     *store.Store
	Ledger    *ledger.Ledger
	Feed      *store.Broadcast
	Records   *records.Writer
	AnySource bool // a source may change bundles of another source
}

// Agents are the further parameters of NewAgents. All are needed.
type Agents struct {
	Streams       Streams
	Intake        Intake
	RecordContact func(consumer work.Consumer) // notes that an event of a consumer's agent arrived
}

// Metrics are the collectors that the ports change.
type Metrics struct {
	Called    *prometheus.CounterVec // calls, by method
	Received  *prometheus.CounterVec // published events, by type
	Processed *prometheus.CounterVec // Publish calls, by type and code
	Duration  prometheus.Histogram   // seconds of Publish calls
	Sent      prometheus.Counter     // events on streams, without heartbeats
	Streams   prometheus.Gauge       // open subscriptions
}

// api has the options that both services use.
type api struct{ o Options }

// Service is the CloudEventService for sources, or for agents. It can serve several ports.
type Service struct {
	*api
	events cloudevents.CloudEventServiceServer
}

// NewSources returns the service for sources.
func NewSources(o Options, in Sources) *Service {
	a := &api{o}
	return &Service{a, &sourcePort{api: a, in: in, streams: map[*sourceStream]struct{}{}}}
}

// NewAgents returns the service for agents.
func NewAgents(o Options, in Agents) *Service {
	a := &api{o}
	return &Service{a, &agentPort{api: a, in: in}}
}

// Port is one gRPC listener.
type Port struct {
	Listener net.Listener
	TLS      *tls.Config // nil: plain
	Foreign  bool        // TLS verifies clients by a CA that is not the region's
}

// trust returns how the port trusts client certificates.
func (p *Port) trust() rpcauth.Trust {
	switch {
	case p.TLS == nil:
		return rpcauth.TrustPlain
	case p.Foreign:
		return rpcauth.TrustForeignCA
	}
	return rpcauth.TrustRegionCA
}

func (s *Service) newServer(port Port) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: serverPingWait}),
		grpc.ConnectionTimeout(20 * time.Second),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (
			_ any, err error) {
			defer s.recovered(ctx, info.FullMethod, &err)
			if ctx, err = s.identify(ctx, port); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (
			err error) {
			defer s.recovered(ss.Context(), info.FullMethod, &err)
			ctx, err := s.identify(ss.Context(), port)
			if err != nil {
				return err
			}
			return h(srv, &identifiedStream{ss, ctx})
		}),
	}
	if port.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(port.TLS)))
	}
	g := grpc.NewServer(options...)
	cloudevents.RegisterCloudEventServiceServer(g, s.events)
	return g
}

// recovered turns a panic of a handler into an error. Handlers defer it.
func (a *api) recovered(ctx context.Context, method string, err *error) {
	if p := recover(); p != nil {
		*err = a.status("failed to handle the call", fmt.Errorf("panic: %v", p))
		a.o.Logger.LogAttrs(ctx, slog.LevelError, "panic in a gRPC call", slog.String("method", method),
			slog.Any("panic", p))
	}
}

// status turns an error into a gRPC status.
func (a *api) status(doing string, err error) error {
	form := apierror.KubernetesStatus
	if a.o.PlainErrors {
		form = apierror.PlainText
	}
	return apierror.RPCStatus(form, doing, err)
}

type identifiedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *identifiedStream) Context() context.Context { return s.ctx }

// identify authenticates the caller, and refuses unknown callers (I10). The handlers
// authorize the call, since only they know its source or cluster.
func (a *api) identify(ctx context.Context, port Port) (context.Context, error) {
	c, err := a.o.Auth.Authenticate(ctx, port.trust())
	if err != nil {
		if e, ok := errors.AsType[*rest.Error](err); ok && e.Status == http.StatusUnauthorized {
			return nil, status.Error(codes.Unauthenticated, e.Reason)
		}
		return nil, a.status("not allowed", err)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	ctx = records.WithActor(ctx, c.Peer, func(key string) string {
		if v := md.Get(key); len(v) > 0 {
			return v[0]
		}
		return ""
	}, uuid.NewString())
	return rpcauth.WithCaller(ctx, c), nil
}

// publishing counts one Publish call. The caller calls the returned function at the end.
func (a *api) publishing() func(kind string, err error) {
	start := time.Now()
	m := a.o.Metrics
	m.Called.WithLabelValues("Publish").Inc()
	return func(kind string, err error) {
		m.Received.WithLabelValues(kind).Inc()
		m.Processed.WithLabelValues(kind, status.Code(err).String()).Inc()
		m.Duration.Observe(time.Since(start).Seconds())
	}
}

// Serve serves a port until ctx ends, then waits up to Options.Grace for the running calls.
func (s *Service) Serve(ctx context.Context, port Port) error {
	g := s.newServer(port)
	served := make(chan error, 1)
	go func() { served <- g.Serve(port.Listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving gRPC on %s: %w", port.Listener.Addr(), err)
	case <-ctx.Done():
	}
	force := time.AfterFunc(s.o.Grace, g.Stop)
	defer force.Stop()
	g.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving gRPC on %s: %w", port.Listener.Addr(), err)
	}
	return nil
}
