package maestro

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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"atoll.dev/api/cloudevents"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/records"
	"atoll.dev/maestro/rpcauth"
)

const (
	maxReceive     = 4 << 20
	maxCalls       = 1000 // open calls on one connection
	minClientPing  = 5 * time.Second
	serverPing     = 30 * time.Second
	serverPingWait = 10 * time.Second
)

// rpcPort is one gRPC listener, with the service for sources or for agents.
type rpcPort struct {
	listener net.Listener
	config   *tls.Config // nil: plain
	foreign  bool        // config verifies clients by a CA that is not the region's
	service  cloudevents.CloudEventServiceServer
}

// trust returns how the port trusts client certificates.
func (p *rpcPort) trust() rpcauth.Trust {
	switch {
	case p.config == nil:
		return rpcauth.TrustPlain
	case p.foreign:
		return rpcauth.TrustForeignCA
	}
	return rpcauth.TrustRegionCA
}

func (s *Server) newGRPC(port rpcPort) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: serverPingWait}),
		grpc.ConnectionTimeout(20 * time.Second),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (
			_ any, err error) {
			defer s.recovered(ctx, info.FullMethod, &err)
			if ctx, err = s.identifyRPC(ctx, port); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (
			err error) {
			defer s.recovered(ss.Context(), info.FullMethod, &err)
			ctx, err := s.identifyRPC(ss.Context(), port)
			if err != nil {
				return err
			}
			return h(srv, &identifiedStream{ss, ctx})
		}),
	}
	if port.config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(port.config)))
	}
	g := grpc.NewServer(options...)
	cloudevents.RegisterCloudEventServiceServer(g, port.service)
	return g
}

// recovered turns a panic of a handler into an error. Handlers defer it.
func (s *Server) recovered(ctx context.Context, method string, err *error) {
	if p := recover(); p != nil {
		*err = s.grpcError("failed to handle the call", fmt.Errorf("panic: %v", p))
		s.log.LogAttrs(ctx, slog.LevelError, "panic in a gRPC call", slog.String("method", method),
			slog.Any("panic", p))
	}
}

// grpcError turns an error into a gRPC status.
func (s *Server) grpcError(doing string, err error) error {
	form := apierror.KubernetesStatus
	if s.opts.PlainErrors {
		form = apierror.PlainText
	}
	return apierror.RPCStatus(form, doing, err)
}

type identifiedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *identifiedStream) Context() context.Context { return s.ctx }

// identifyRPC authenticates the caller, and refuses unknown callers (I10). The handlers
// authorize the call, since only they know its source or cluster.
func (s *Server) identifyRPC(ctx context.Context, port rpcPort) (context.Context, error) {
	c, err := s.auth.Authenticate(ctx, port.trust())
	if err != nil {
		if e, ok := errors.AsType[*rest.Error](err); ok && e.Status == http.StatusUnauthorized {
			return nil, status.Error(codes.Unauthenticated, e.Reason)
		}
		return nil, s.grpcError("not allowed", err)
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

// serveGRPC serves until ctx ends, then waits up to grace for the running calls.
func serveGRPC(ctx context.Context, g *grpc.Server, l net.Listener, grace time.Duration) error {
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving gRPC on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	force := time.AfterFunc(grace, g.Stop)
	defer force.Stop()
	g.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving gRPC on %s: %w", l.Addr(), err)
	}
	return nil
}
