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
	DSN      string // of the database clm, which only CLM's processes read
	MaxConns int    // to the database; default 16, and a few for the feed
	Registry *Registry
	Tenants  bool             // most lists are of one tenant: create an index for them
	Kinds    []store.KindSpec // the kinds of an Extension, besides the registry's

	Version string
	Metrics prometheus.Registerer // gets hyperfleet-api's about the database; may be nil
	Logger  *slog.Logger          // default: discard
	Ops     *rest.Ops             // gets the readiness checks database and feed; may be nil

	// Adapt changes the options of the store; nil: it opens as a service does. Tests of something else than the limits
	// of the store give store.Options.Patient.
	Adapt func(store.Options) store.Options
}

// Database is CLM's open database with its change feed. The API and the sentinel of one
// process share it. Several processes may open the same database.
type Database struct {
	Registry *Registry
	Store    *store.Store
	Feed     *store.Broadcast

	stop     context.CancelFunc
	follower sync.WaitGroup
}

// Open opens the database, migrates its schema, and follows its feed until Close.
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
			labelIndex,
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
			Facets: facets, Detail: statusDetail, Decode: decode, Compare: compare, Observations: &observationForm,
			SameSpec: sameStoredSpec,
			Recorded: recorded, History: true, Owner: accountOf, Indexes: indexes}
	}
	kinds = append(append(kinds, store.KindSpec{Kind: RequestKind, History: true}, quotaKind), o.Kinds...)
	options := store.Options{DSN: o.DSN, Logger: o.Logger, Migrations: migrations,
		MaxConns: o.MaxConns, Kinds: kinds}
	if o.Adapt != nil {
		options = o.Adapt(options)
	}
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
	// Requests and the sentinel need the feed until they have ended, which is after ctx.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.follower.Go(func() { _ = d.Feed.Run(following) })
	return d, nil
}

// fieldIndex returns an index for searches by a member of the spec: spec.a.b='text'.
func fieldIndex(field string) store.Index {
	path := strings.Split(field, ".")
	last := len(path) - 1
	on := "(spec->'spec')"
	for _, member := range path[:last] {
		on += "->'" + member + "'"
	}
	// The name has a hash of the field, because each field has its own index and names in PostgreSQL are short.
	name := fmt.Sprintf("field_%08x", crc32.ChecksumIEEE([]byte(field)))
	return store.Index{Name: name, On: "btree ((" + on + "->>'" + path[last] + "'))", Live: true}
}

// Close stops following the feed and closes the connections. All users of the database
// must have stopped before.
func (d *Database) Close() {
	d.stop()
	d.follower.Wait()
	d.Store.Close()
}

// migrations are the steps of CLM's own tables and indexes; add only to the end.
var migrations = []string{sideTables, instant, memberTable, deletingIndex, withoutStatusIndexes, quotaTable,
	withoutLabelIndexes}

// SchemaVersion returns the version of the schema of CLM's tables that this program knows.
func SchemaVersion() int { return len(migrations) }

// withoutLabelIndexes drops the indexes on the labels of each kind that labelIndex replaces.
const withoutLabelIndexes = `do $$ declare old text; begin
	for old in select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
		where i.indrelid = 'document'::regclass and c.relname ~ '^document_[A-Za-z0-9]+_labels$' loop
		execute format('drop index %I', old);
	end loop;
end $$`

// withoutStatusIndexes drops two indexes that read the status: with them, no change of a status was written in place.
const withoutStatusIndexes = `drop index if exists "document_Placement_host", "document_Placement_state"`

// deletingIndex finds the resources that are being deleted, which tidy looks for every ten minutes, without reading
// the others.
const deletingIndex = `create index document_deleting on document (kind, id) where deleted_at is not null and removed_at is null`

// sideTables creates the tables beside the documents: references between resources, by
// which CLM refuses to delete a resource that another one refers to, and used idempotency
// keys.
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
