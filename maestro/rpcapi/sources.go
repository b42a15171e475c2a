package rpcapi

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
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
	"atoll.dev/store"
)

// sourcePort implements CloudEventService for sources.
type sourcePort struct {
	cloudevents.UnimplementedCloudEventServiceServer
	*api
	in Sources

	mu      sync.Mutex
	streams map[*sourceStream]struct{}
}

// Publish handles an event of a source. It returns after the commit (I5).
func (g *sourcePort) Publish(ctx context.Context, req *cloudevents.PublishRequest) (_ *emptypb.Empty, err error) {
	done := g.publishing()
	kind := "other"
	defer func() { done(kind, err) }()
	m, err := wire.FromProto(req.GetEvent())
	if err != nil {
		return nil, g.status("failed to decode event", err)
	}
	var doing string
	switch m.Type {
	case work.SpecCreate:
		kind, doing = "create", "failed to create resource"
	case work.SpecUpdate:
		kind, doing = "update", "failed to update resource"
	case work.SpecDelete:
		kind, doing = "delete", "failed to delete resource"
	case work.StatusResync:
		kind, doing = "resync", "failed to resync status"
	default:
		return nil, g.status("failed to decode event", apierror.BadRequest("unsupported action %s", m.Type))
	}
	if err := g.o.Auth.Authorize(ctx, rpcauth.Publish, rpcauth.Sources, m.Source); err != nil {
		return nil, g.status("not allowed", err)
	}
	if kind == "resync" {
		err = g.resync(ctx, m)
	} else {
		err = g.publish(ctx, m)
	}
	if err != nil {
		err = g.status(doing, err)
		if c := status.Code(err); c == codes.Internal || c == codes.Unavailable {
			g.o.Logger.LogAttrs(ctx, slog.LevelWarn, "publish failed", slog.String("action", kind),
				slog.String("code", c.String()), slog.Any("error", err))
		}
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// publish creates, updates or deletes a bundle.
func (g *sourcePort) publish(ctx context.Context, m bus.Event) error {
	spec, err := wire.DecodeSpec(m)
	if err != nil {
		return err
	}
	spec.AnySource = g.in.AnySource
	version, err := g.in.Records.ApplySpec(ctx, m.Type, spec)
	if err != nil || version == 0 {
		return err
	}
	// An addition to the original: so the source need not get the bundle for its entity tag.
	return grpc.SetHeader(ctx, metadata.Pairs("atoll-version", strconv.FormatInt(version, 10)))
}

// resync queues a source's request for statuses at the subscription on the connection
// of the request. When that connection has none, as behind a proxy, all subscriptions of
// the source get the request.
func (g *sourcePort) resync(ctx context.Context, m bus.Event) error {
	var list work.StatusHashes
	if len(m.Data) > 0 {
		if err := rest.DecodeJSON(m.Data, &list); err != nil {
			return apierror.Invalid("the data of the event cannot be read: %s", apierror.ReasonOf(err))
		}
	}
	conn := connectionOf(ctx)
	var here, elsewhere []*sourceStream
	g.mu.Lock()
	for st := range g.streams {
		switch {
		case st.source != m.Source:
		case st.conn == conn:
			here = append(here, st)
		default:
			elsewhere = append(elsewhere, st)
		}
	}
	g.mu.Unlock()
	if len(here) == 0 {
		here = elsewhere
	}
	for _, st := range here {
		if !st.enqueueResync(list) {
			return apierror.Unavailable("too many resync requests wait; try again")
		}
	}
	return nil
}

// connectionOf returns the client's address and port, which identify its connection.
func connectionOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// sourceStream is a subscription of a source.
type sourceStream struct {
	source, conn string
	sub          *store.Subscription
	requested    chan struct{} // holds a token when there are requests

	mu       sync.Mutex
	requests []work.StatusHashes

	// Only the writer uses these. seen has the versions that a resync sent, so that the
	// writer skips older versions that the feed brings afterwards. The writer clears seen
	// when the feed has passed until.
	seen  map[string]int64
	until time.Time
}

const maxResyncRequests = 1000

// enqueueResync queues a resync request for the writer. It returns false when too many wait.
func (st *sourceStream) enqueueResync(list work.StatusHashes) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.requests) >= maxResyncRequests {
		return false
	}
	st.requests = append(st.requests, list)
	select {
	case st.requested <- struct{}{}:
	default:
	}
	return true
}

// Subscribe streams the statuses of a source's bundles, and heartbeats.
func (g *sourcePort) Subscribe(req *cloudevents.SubscriptionRequest, stream eventStream) error {
	g.o.Metrics.Called.WithLabelValues("Subscribe").Inc()
	source, ctx := req.GetSource(), stream.Context()
	if source == "" {
		return g.status("failed to subscribe", apierror.Invalid("the subscription names no source"))
	}
	if err := g.o.Auth.Authorize(ctx, rpcauth.Subscribe, rpcauth.Sources, source); err != nil {
		return g.status("not allowed", err)
	}
	st := &sourceStream{source: source, conn: connectionOf(ctx), requested: make(chan struct{}, 1),
		seen: map[string]int64{}}
	st.sub = g.in.Feed.Subscribe(func(c *store.Change) bool {
		if c.Kind != bundle.Kind {
			return false
		}
		spec, _, err := bundle.RecordsOf(c)
		return err == nil && spec.Source == source
	})
	defer st.sub.Close()
	g.mu.Lock()
	g.streams[st] = struct{}{}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.streams, st)
	}()
	return g.serveStream(stream, rpcauth.Sources, source, st.sub.Ended(), st.sub.Reason, func(ctx context.Context,
		o *eventSender) error {
		return g.write(ctx, st, o)
	})
}

// write sends changes of the feed, answers to resync requests, and heartbeats, until ctx ends
// or a send fails.
func (g *sourcePort) write(ctx context.Context, st *sourceStream, o *eventSender) error {
	heartbeat := time.NewTicker(g.o.Heartbeat)
	defer heartbeat.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-heartbeat.C:
			if err := o.sendHeartbeat(); err != nil {
				return err
			}
		case <-st.sub.Woken():
			if err := g.drain(ctx, st, o); err != nil {
				return err
			}
		case <-st.requested:
			st.mu.Lock()
			requests := st.requests
			st.requests = nil
			st.mu.Unlock()
			for _, q := range requests {
				err := g.answer(ctx, st, o, q, heartbeat.C)
				if _, ok := status.FromError(err); !ok {
					g.o.Logger.LogAttrs(ctx, slog.LevelWarn, "a resync of a source broke off",
						slog.String("source", st.source), slog.Any("error", err))
				}
				if err != nil {
					return err
				}
			}
		}
	}
}

// drain sends the changes that the feed has delivered, except versions that a resync sent.
func (g *sourcePort) drain(ctx context.Context, st *sourceStream, o *eventSender) error {
	batches, err := st.sub.Take()
	if err != nil {
		return err
	}
	for _, b := range batches {
		if b.NewerThan(st.until) {
			clear(st.seen)
		}
		for _, c := range b.Changes {
			if !c.Removed && c.Version <= st.seen[c.ID] {
				continue
			}
			if err := g.forward(ctx, o, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// forward sends the status of a changed bundle. It logs and skips a bundle that it cannot encode.
func (g *sourcePort) forward(ctx context.Context, o *eventSender, c *store.Change) error {
	m, ok, err := wire.EncodeStatus(c)
	if err != nil {
		g.o.Logger.LogAttrs(ctx, slog.LevelError, "status not forwarded", slog.String("bundle", c.ID),
			slog.Any("error", err))
		return nil
	}
	if !ok {
		return nil
	}
	return g.sendEvent(o, m)
}

// sendEvent sends an event and counts it.
func (g *sourcePort) sendEvent(o *eventSender, m bus.Event) error {
	if err := o.send(wire.ToProto(m)); err != nil {
		return err
	}
	g.o.Metrics.Sent.Inc()
	return nil
}

// resyncPage is the number of bundles of a resync that are in memory at once.
const resyncPage = 100

// answer sends the statuses that a source lacks. When the source lists no bundles, these
// are the statuses of all its bundles; otherwise the statuses of listed bundles that
// differ, and the deletion of listed bundles that are removed. It sends as fast as the
// client reads, and sends changes of the feed between the pages.
func (g *sourcePort) answer(ctx context.Context, st *sourceStream, o *eventSender, list work.StatusHashes,
	heartbeat <-chan time.Time) error {
	q := store.Query{Kind: bundle.Kind, Where: store.Fragment{SQL: "d.spec->>'source' = $1", Args: []any{st.source}},
		Limit: resyncPage, Deletion: store.WithDeleting}
	if len(list.Hashes) > 0 {
		differing, removals, err := g.compareSource(ctx, st.source, list.Hashes)
		if err != nil {
			return err
		}
		q.Where = store.Fragment{SQL: "d.spec->>'source' = $1 and d.id = any($2)", Args: []any{st.source, differing}}
		if len(differing) > 0 {
			if err := g.pages(ctx, st, o, q, heartbeat); err != nil {
				return err
			}
		}
		for _, m := range removals {
			if err := g.sendEvent(o, m); err != nil {
				return err
			}
		}
		return nil
	}
	return g.pages(ctx, st, o, q, heartbeat)
}

// pages sends the statuses of all documents of a query, page by page.
func (g *sourcePort) pages(ctx context.Context, st *sourceStream, o *eventSender, q store.Query,
	heartbeat <-chan time.Time) error {
	for {
		page, err := g.in.Store.List(ctx, q)
		if err != nil {
			return err
		}
		st.until = time.Now()
		for _, d := range page.Documents {
			st.seen[d.ID] = d.Version
			if err := g.forward(ctx, o, &store.Change{Document: d}); err != nil {
				return err
			}
		}
		select {
		case <-heartbeat:
			if err := o.sendHeartbeat(); err != nil {
				return err
			}
		default:
		}
		if err := g.drain(ctx, st, o); err != nil {
			return err
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// compareSource compares a source's list with the store. It returns the ids of bundles
// whose status differs, and the removals of bundles that no longer exist.
func (g *sourcePort) compareSource(ctx context.Context, source string, list []work.StatusHash) (ids []work.ID,
	removals []bus.Event, err error) {
	theirs := make(map[work.ID]string, len(list))
	for _, h := range list {
		theirs[h.ID] = h.Hash
	}
	ours, err := g.in.Ledger.SourceHashes(ctx, source, list)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range ours {
		if theirs[h.ID] != h.Hash {
			ids = append(ids, h.ID)
		}
		delete(theirs, h.ID)
	}
	if len(theirs) == 0 {
		return ids, nil, nil
	}
	removals, err = g.removalsOf(ctx, source, theirs)
	return ids, removals, err
}

// removalsOf returns the events of deleted bundles that a source still lists, made from their tombstones.
func (g *sourcePort) removalsOf(ctx context.Context, source string, listed map[work.ID]string) ([]bus.Event, error) {
	tombstones, err := g.in.Ledger.TombstonesOf(ctx, source, slices.Collect(maps.Keys(listed)))
	if err != nil {
		return nil, err
	}
	removals := make([]bus.Event, len(tombstones))
	for i, t := range tombstones {
		if removals[i], err = wire.EncodeRemoval(t.Consumer, t.ID, t.Version, t.At); err != nil {
			return nil, err
		}
	}
	return removals, nil
}
