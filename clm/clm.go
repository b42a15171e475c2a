package clm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Options are the parameters of New. DSN, Registry and HTTP are needed.
type Options struct {
	DSN      string // of the database clm, which nobody else reads
	MaxConns int    // to the database; default 16, and a few for the feed

	Registry *Registry
	Specs    SpecSchemas // default: any object is a spec

	HTTP    net.Listener
	HTTPTLS *tls.Config // must ask for client certificates; nil: plain, for loopback only

	Identify Identifier // usually an Identity's

	Version, BuildTime string        // for the metadata
	ShutdownGrace      time.Duration // for requests under way; default 5 s

	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
	Ops     *rest.Ops // gets the readiness check database; may be nil
}

// Server is one API server. Several may share a database.
type Server struct {
	opts     Options
	log      *slog.Logger
	store    *store.Store
	registry *Registry
	feed     *store.Broadcast
}

// New opens the database, bringing its schema up to date, and returns a server
// that does nothing until Run. It owns the listener from then on.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Registry == nil || o.HTTP == nil || o.Identify == nil {
		return nil, errors.New("clm: a registry, a listener and a way to identify callers are needed")
	}
	if o.ShutdownGrace <= 0 {
		o.ShutdownGrace = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, e := range o.Registry.entities {
		if e.RequireSpecSchema && !o.Specs.has(e.SpecSchemaName) {
			return nil, fmt.Errorf("clm: %s needs the schema %s, and there is none; set server.openapi_schema_path", e.Kind, e.SpecSchemaName)
		}
	}
	kinds := make([]store.KindSpec, len(o.Registry.entities))
	for i, e := range o.Registry.entities {
		kinds[i] = store.KindSpec{Kind: e.storeKind(), Render: e.render, History: true, Indexes: []store.Index{
			{Name: "created", On: "btree (created_at, id)"},
			{Name: "scope", On: "btree (scope, created_at, id)"},
			{Name: "labels", On: "gin ((spec->'labels') jsonb_path_ops)"},
		}}
	}
	kinds = append(kinds, store.KindSpec{Kind: RequestKind, History: true})
	st, err := store.Open(ctx, store.Options{DSN: o.DSN, Logger: o.Logger, Migrations: []string{sideTables}, MaxConns: o.MaxConns, Kinds: kinds})
	if err != nil {
		return nil, fmt.Errorf("clm: %w", err)
	}
	s := &Server{opts: o, log: o.Logger, store: st, registry: o.Registry, feed: st.NewBroadcast(nil)}
	if o.Ops != nil {
		o.Ops.Check("database", st.Ping)
		o.Ops.Check("feed", s.feed.Check)
	}
	return s, nil
}

// Run serves until ctx ends, then stops: watches end at once, requests under
// way are finished.
func (s *Server) Run(ctx context.Context) error {
	defer s.store.Close()
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	var follower sync.WaitGroup
	follower.Go(func() { _ = s.feed.Run(following) })
	follower.Go(func() { s.keepTidy(following) })
	defer follower.Wait()
	defer stop() // after the last request
	web := &rest.Server{Name: "clm", Handler: s.handler(), TLS: s.opts.HTTPTLS, Log: s.log, Grace: s.opts.ShutdownGrace}
	return web.Run(ctx, s.opts.HTTP)
}

// sideTables are what cannot be in the documents: who refers to whom, so that
// nothing is deleted that is referred to, and which keys have been used.
const sideTables = `
create table reference (
	source text not null,
	type   text not null,
	target text not null,
	primary key (source, type, target)
);
create index reference_target on reference (target);

create table idempotency (
	principal  text not null,
	key        text not null,
	digest     bytea not null, -- of the request
	kind       text not null,
	id         text not null,
	created_at timestamptz not null default now(),
	primary key (principal, key)
);
create index idempotency_created on idempotency (created_at);
`
