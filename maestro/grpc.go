package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// sources is CloudEventService towards sources. (Towards agents it is a port
// of its own, which comes with gRPC for agents.)
type sources struct {
	cloudevents.UnimplementedCloudEventServiceServer
	s *Server
}

const (
	maxReceive     = 4 << 20
	minClientPing  = 5 * time.Second
	serverPing     = 30 * time.Second
	serverPingWait = 10 * time.Second
)

// newGRPC makes the gRPC server of the sources' port.
func (s *Server) newGRPC() *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: serverPingWait}),
		grpc.ConnectionTimeout(20 * time.Second),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			ctx, err := s.identifyRPC(ctx)
			if err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			ctx, err := s.identifyRPC(ss.Context())
			if err != nil {
				return err
			}
			return h(srv, &identifiedStream{ss, ctx})
		}),
	}
	if s.opts.GRPCTLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.opts.GRPCTLS)))
	}
	g := grpc.NewServer(options...)
	cloudevents.RegisterCloudEventServiceServer(g, &sources{s: s})
	return g
}

type identifiedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *identifiedStream) Context() context.Context { return s.ctx }

// identifyRPC finds out who calls, and refuses whom nobody knows (I10).
func (s *Server) identifyRPC(ctx context.Context) (context.Context, error) {
	var name pki.Name
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			if verified, err := pki.PeerName(&info.State); err == nil {
				name = verified
			}
		}
	}
	if err := s.admit(name, s.opts.GRPCTLS != nil); err != nil {
		e, _ := errors.AsType[*rest.Error](err)
		if e.Status == http.StatusUnauthorized {
			return nil, status.Error(codes.Unauthenticated, e.Reason)
		}
		return nil, grpcError("not allowed", err)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return withCaller(ctx, name, func(key string) string {
		if v := md.Get(key); len(v) > 0 {
			return v[0]
		}
		return ""
	}, uuid.NewString()), nil
}

// Publish takes an event of a source. It returns after the commit (I5).
func (g *sources) Publish(ctx context.Context, req *cloudevents.PublishRequest) (_ *emptypb.Empty, err error) {
	start := time.Now()
	kind := "other"
	defer func() {
		if p := recover(); p != nil {
			err = grpcError("failed to handle event", fmt.Errorf("panic: %v", p))
			g.s.log.LogAttrs(ctx, slog.LevelError, "panic in Publish", slog.Any("panic", p))
		}
		g.s.metrics.grpcProcessed.WithLabelValues(kind, status.Code(err).String()).Inc()
		since(g.s.metrics.grpcDuration, start)
	}()
	m, err := fromProto(req.GetEvent())
	if err != nil {
		return nil, grpcError("failed to decode event", err)
	}
	var doing string
	switch m.kind {
	case work.SpecCreate:
		kind, doing = "create", "failed to create resource"
	case work.SpecUpdate:
		kind, doing = "update", "failed to update resource"
	case work.SpecDelete:
		kind, doing = "delete", "failed to delete resource"
	case work.StatusResync:
		kind, doing = "resync", "failed to resync status"
	default:
		return nil, grpcError("failed to decode event", badRequest("unsupported action %s", m.kind))
	}
	if kind == "resync" {
		err = g.resync(ctx, m)
	} else {
		var spec specRequest
		if spec, err = decodeSpec(m); err == nil {
			var version int64
			if version, err = g.s.publishSpec(ctx, m.kind, spec); err == nil && version > 0 {
				// Additive: the source need not ask for the bundle's entity tag.
				err = grpc.SetHeader(ctx, metadata.Pairs("atoll-version", strconv.FormatInt(version, 10)))
			}
		}
	}
	if err != nil {
		err = grpcError(doing, err)
		if c := status.Code(err); c == codes.Internal || c == codes.Unavailable {
			g.s.log.LogAttrs(ctx, slog.LevelWarn, "publish failed", slog.String("action", kind), slog.String("code", c.String()), slog.Any("error", err))
		}
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// resync replays the statuses that a source asks for to its subscribers: all
// when it lists none, else those that differ, and the end of those that are
// gone.
func (g *sources) resync(ctx context.Context, m message) error {
	if m.source == "" {
		return invalid("the event has no source")
	}
	var list work.StatusHashes
	if len(m.data) > 0 {
		if err := rest.DecodeJSON(m.data, &list); err != nil {
			return invalid("the data of the event cannot be read: %s", reasonOf(err))
		}
	}
	theirs := make(map[string]string, len(list.Hashes))
	ids := make([]string, 0, len(list.Hashes))
	for _, h := range list.Hashes {
		theirs[h.ID] = h.Hash
		ids = append(ids, h.ID)
	}
	q := store.Query{Kind: kindBundle, Where: store.Fragment{SQL: "d.spec->>'source' = $1", Args: []any{m.source}}, Limit: 500, Deletion: store.WithDeleting}
	if len(ids) > 0 {
		q.Where = store.Fragment{SQL: "d.spec->>'source' = $1 and d.id = any($2)", Args: []any{m.source, ids}}
	}
	for {
		page, err := g.s.store.List(ctx, q)
		if err != nil {
			return err
		}
		var changes []*change
		for _, d := range page.Documents {
			c := &change{doc: d}
			_, stat, err := c.records()
			if err != nil {
				return err
			}
			hash, err := hashOf(stat)
			if err != nil {
				return err
			}
			have, listed := theirs[d.ID]
			delete(theirs, d.ID)
			if !listed || have != hash {
				changes = append(changes, c)
			}
		}
		g.s.feed.replay(changes)
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if len(theirs) == 0 {
		return nil
	}
	gone, err := g.s.graves(ctx, m.source, theirs)
	if err != nil {
		return err
	}
	g.s.feed.replay(gone)
	return nil
}

// Subscribe streams the statuses of a source's bundles, and heartbeats.
func (g *sources) Subscribe(req *cloudevents.SubscriptionRequest, stream grpc.ServerStreamingServer[cloudevents.CloudEvent]) error {
	source := req.GetSource()
	if source == "" {
		return grpcError("failed to subscribe", invalid("the subscription names no source"))
	}
	sub := g.s.feed.subscribe(func(c *change) bool {
		if c.doc.Kind != kindBundle {
			return false
		}
		spec, _, err := c.records()
		return err == nil && spec.Source == source
	})
	defer sub.close()
	g.s.metrics.streams.Inc()
	defer g.s.metrics.streams.Dec()
	// Clients wait for the header before they count as subscribed, so it goes
	// out when the subscription stands.
	if err := stream.SendHeader(metadata.Pairs("subscription-id", uuid.NewString())); err != nil {
		return err
	}
	beat := time.NewTicker(g.s.opts.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-g.s.stopping:
			return status.Error(codes.Unavailable, "the server is stopping; reconnect")
		case <-beat.C:
			if err := stream.Send(&cloudevents.CloudEvent{Id: uuid.NewString(), SpecVersion: "1.0", Type: work.Heartbeat}); err != nil {
				return err
			}
		case <-sub.woken:
			batches, err := sub.take()
			if err != nil {
				return status.Error(codes.Aborted, err.Error()+"; reconnect and resync")
			}
			for _, b := range batches {
				for _, c := range b.changes {
					if err := g.forward(stream, c); err != nil {
						return err
					}
				}
			}
		}
	}
}

func (g *sources) forward(stream grpc.ServerStreamingServer[cloudevents.CloudEvent], c *change) error {
	m, ok, err := encodeStatus(c)
	if err != nil {
		g.s.log.LogAttrs(stream.Context(), slog.LevelError, "status not forwarded", slog.String("bundle", c.doc.ID), slog.Any("error", err))
		return nil
	}
	if !ok {
		return nil
	}
	if err := stream.Send(toProto(m)); err != nil {
		return err
	}
	g.s.metrics.streamed.Inc()
	return nil
}

// graves makes the ends of bundles that a source still lists, and that are
// gone.
func (s *Server) graves(ctx context.Context, source string, ids map[string]string) ([]*change, error) {
	list := make([]string, 0, len(ids))
	for id := range ids {
		list = append(list, id)
	}
	dead, err := s.buriedOf(ctx, source, list)
	if err != nil {
		return nil, err
	}
	var changes []*change
	for _, d := range dead {
		spec, err := json.Marshal(specRecord{Source: source, Consumer: d.consumer, ID: d.id, Version: d.generation, Data: json.RawMessage(`{"manifests":[]}`)})
		if err != nil {
			return nil, err
		}
		changes = append(changes, &change{doc: store.Document{
			Kind: kindBundle, ID: d.id, Scope: d.consumer, Generation: d.generation, Spec: spec, UpdatedAt: d.at, Removed: true,
		}})
	}
	return changes, nil
}
