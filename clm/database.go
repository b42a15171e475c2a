package clm

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// DatabaseOptions are the parameters of Open. DSN and Registry are needed.
type DatabaseOptions struct {
	DSN      string // of the database clm, which nobody else reads
	MaxConns int    // to the database; default 16, and a few for the feed
	Registry *Registry
	Tenants  bool             // lists are mostly of tenants: they get an index
	Kinds    []store.KindSpec // more than the registry's, of an Extension

	Version string
	Metrics prometheus.Registerer // gets hyperfleet-api's about the database; may be nil
	Logger  *slog.Logger          // default: discard
	Ops     *rest.Ops             // gets the readiness checks database and feed; may be nil
}

// Database is CLM's database, open and followed: what the API and the sentinel
// of one process share. Several processes may have the same one open.
type Database struct {
	Registry *Registry
	Store    *store.Store
	Feed     *store.Broadcast

	stop     context.CancelFunc
	follower sync.WaitGroup
}

// Open opens the database, bringing its schema up to date, and follows its
// feed until Close.
func Open(ctx context.Context, o DatabaseOptions) (*Database, error) {
	if o.DSN == "" || o.Registry == nil {
		return nil, errors.New("clm: a database and a registry are needed")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	kinds := make([]store.KindSpec, len(o.Registry.entities))
	for i, e := range o.Registry.entities {
		indexes := []store.Index{
			{Name: "age", On: "btree (created_at, id)", Live: true},
			{Name: "labels", On: "gin ((spec->'labels') jsonb_path_ops)"},
		}
		if e.parent != nil {
			indexes = append(indexes, store.Index{Name: "siblings", On: "btree (scope, created_at, id)", Live: true})
		}
		if o.Tenants {
			indexes = append(indexes, store.Index{Name: "tenants", On: "btree ((spec->'tenancy'), created_at, id)",
				Live: true})
		}
		for _, field := range e.Indexed {
			indexes = append(indexes, fieldIndex(field))
		}
		if e.Expires != "" {
			indexes = append(indexes, e.expiryIndex())
		}
		kinds[i] = store.KindSpec{Kind: e.storeKind(), Render: e.render, Head: wireHead, Tail: e.renderTail,
			Facets: facets, Compare: compare, Recorded: recorded,
			History: true, Indexes: indexes}
	}
	kinds = append(append(kinds, store.KindSpec{Kind: RequestKind, History: true}), o.Kinds...)
	options := store.Options{DSN: o.DSN, Logger: o.Logger, Migrations: []string{sideTables, instant, memberTable},
		MaxConns: o.MaxConns, Kinds: kinds}
	if o.Metrics != nil {
		options.Tracer = newQueries(o.Metrics, o.Version)
	}
	st, err := store.Open(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("clm: %w", err)
	}
	d := &Database{Registry: o.Registry, Store: st, Feed: st.NewBroadcast(nil)}
	if err := d.Feed.Begin(ctx); err != nil {
		st.Close()
		return nil, fmt.Errorf("clm: %w", err)
	}
	if o.Ops != nil {
		o.Ops.Check("database", st.Ping)
		o.Ops.Check("feed", d.Feed.Check)
	}
	// Requests and the sentinel need the feed until their own end.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.follower.Go(func() { _ = d.Feed.Run(following) })
	return d, nil
}

// fieldIndex serves searches by a member of the spec: spec.a.b='text'.
func fieldIndex(field string) store.Index {
	path := strings.Split(field, ".")
	last := len(path) - 1
	on := "(spec->'spec')"
	for _, member := range path[:last] {
		on += "->'" + member + "'"
	}
	// Another field is another index. Names in PostgreSQL are short.
	name := fmt.Sprintf("field_%08x", crc32.ChecksumIEEE([]byte(field)))
	return store.Index{Name: name, On: "btree ((" + on + "->>'" + path[last] + "'))", Live: true}
}

// Close ends the following and closes the connections. Whoever uses the
// database must have stopped.
func (d *Database) Close() {
	d.stop()
	d.follower.Wait()
	d.Store.Close()
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
	principal  text not null, -- the tenant before it, if there is one
	key        text not null,
	digest     bytea not null, -- of the request
	kind       text not null,
	id         text not null,
	created_at timestamptz not null default now(),
	primary key (principal, key)
);
create index idempotency_created on idempotency (created_at);
`
