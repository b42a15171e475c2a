package clm

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"atoll.dev/internal/rest"
	"atoll.dev/internal/trace"
	"atoll.dev/store"
)

// Options are the parameters of New. Database, Identify, and one of HTTP and
// Plain are needed.
type Options struct {
	Database *Database
	Specs    SpecSchemas // default: any object is a spec

	HTTP    net.Listener
	HTTPTLS *tls.Config  // of the listener HTTP; nil: plain, for loopback only
	Plain   net.Listener // a second listener without TLS, for loopback only; may be nil

	Identify Identifier // usually an Identity's

	Version, BuildTime string        // for the metadata
	ShutdownGrace      time.Duration // for running requests; default 5 s

	ReadTimeout, WriteTimeout time.Duration // rest.Server's
	// WatchesPerCaller is how many watches a caller has open at the same time on this server; 0: any number.
	WatchesPerCaller int
	// bytes of a request that makes or changes a resource; default DefaultMaxResource
	MaxResource   int64
	HistoryMemory time.Duration // how long records of changes are kept; default 90 days

	Logger  *slog.Logger          // default: discard
	Metrics prometheus.Registerer // gets hyperfleet-api's; may be nil
	Stuck   time.Duration         // a resource that is unreconciled for longer is stuck; default 10 min
	Tracer  *trace.Tracer         // nil: off

	// Quotas are the default limits of accounts by name, one of QuotaNames; nil: those that the database has.
	Quotas map[string]int64

	Extension Extension // nil: none
}

// Extension is a part of the region that uses CLM's database in CLM's process. CLM serves
// its routes on its own port, with its own identification, errors and middleware.
type Extension interface {
	// Routes registers the routes. tenant returns the tenancy of a request's caller, nil
	// for the region's own services.
	Routes(m *rest.Mux, tenant func(context.Context) map[string]string)
	// OpenAPI returns the document of the routes, as YAML. CLM adds it to its own.
	OpenAPI() []byte
	// RefuseDeletion returns an error if a resource cannot be deleted, with the reason. CLM calls
	// it in the transaction of the deletion, which has locked the resource.
	RefuseDeletion(ctx context.Context, tx *store.Tx, d store.Document) error
}

// Server is one API server. Several servers may share a database.
type Server struct {
	opts     Options
	log      *slog.Logger
	store    *store.Store
	registry *Registry
	feed     *store.Broadcast
	metrics  *metrics
	pending  *pending // nil: without metrics
	watches  *rest.WatchLimits
	expiries *expiries
	recent   recentResources
	// quotasChecked is when the server last compared the counted use of quotas; only keepTidy uses it.
	quotasChecked time.Time
	document      func() (json.RawMessage, error) // Registry.document, computed once: every client may request it
}

// New returns a server that does nothing until Run. Run closes the listeners; the caller
// closes the database.
func New(o Options) (*Server, error) {
	if o.Database == nil || o.HTTP == nil && o.Plain == nil || o.Identify == nil {
		return nil, errors.New("clm: Options needs a database, a listener and an Identifier")
	}
	if o.ShutdownGrace <= 0 {
		o.ShutdownGrace = 5 * time.Second
	}
	if o.HistoryMemory <= 0 {
		o.HistoryMemory = historyMemory
	}
	if o.MaxResource <= 0 {
		o.MaxResource = DefaultMaxResource
	}
	if o.Stuck <= 0 {
		o.Stuck = 10 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, e := range o.Database.Registry.entities {
		if e.RequireSpecSchema && !o.Specs.has(e.SpecSchemaName) {
			return nil, fmt.Errorf("clm: %s needs the schema %s, and there is none; set server.openapi_schema_path",
				e.Kind, e.SpecSchemaName)
		}
	}
	s := &Server{opts: o, log: o.Logger, store: o.Database.Store, registry: o.Database.Registry, feed: o.Database.Feed,
		document: sync.OnceValues(func() (json.RawMessage, error) {
			return o.Database.Registry.document(o.Specs,
				o.Extension)
		})}
	if o.Metrics != nil {
		s.pending = newPending(o.Database, o.Stuck, o.Logger)
		s.metrics = newMetrics(o.Metrics, o.Version, o.Database.Registry, s.pending)
	}
	s.watches = rest.NewWatchLimits(o.WatchesPerCaller)
	s.expiries = newExpiries(s)
	return s, nil
}

// Run serves until ctx ends, then stops: it ends watches at once and waits for running
// requests.
func (s *Server) Run(ctx context.Context) error {
	if err := s.setDefaultQuotas(ctx); err != nil {
		return fmt.Errorf("clm: %w", errors.Join(err, s.closeListeners()))
	}
	group, ctx := errgroup.WithContext(ctx)
	handler := s.handler()
	serve := func(name string, l net.Listener, config *tls.Config) {
		if l != nil {
			web := &rest.Server{Name: name, Handler: handler, TLS: config, Log: s.log, Grace: s.opts.ShutdownGrace,
				ReadTimeout: s.opts.ReadTimeout, WriteTimeout: s.opts.WriteTimeout}
			group.Go(func() error { return web.Run(ctx, l) })
		}
	}
	group.Go(func() error { s.keepTidy(ctx); return nil })
	group.Go(func() error { s.expiries.run(ctx); return nil })
	group.Go(func() error { s.pending.run(ctx); return nil })
	serve("clm", s.opts.HTTP, s.opts.HTTPTLS)
	serve("clm plain", s.opts.Plain, nil)
	return group.Wait()
}

// closeListeners closes the listeners of a server that did not start.
func (s *Server) closeListeners() (err error) {
	for _, l := range []net.Listener{s.opts.HTTP, s.opts.Plain} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}
