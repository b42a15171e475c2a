// Package maestro ships work to management clusters and brings its status
// back: consumers and resource bundles over REST, sources over gRPC, agents
// over MQTT or gRPC, in the protocol of Open Cluster Management and the contract of
// openshift-online/maestro.
//
// All state is in the store. A request changes a bundle, its ledger and its
// history in one transaction and is answered after the commit; delivery to
// agents, watches and streams to sources follow the store's feed. The ledger has
// the unacknowledged works at any moment, so a server may be killed at any
// instruction.
//
// Its packages: bundle has the types of bundles and consumers, and decides how an update, a deletion
// or a status changes them; records stores these changes; restapi is the REST API and rpcapi the gRPC
// API; ledger has the rows of delivery; delivery decides which work is sent at which time, and dispatch
// sends it over MQTT or gRPC; intake stores the statuses of agents; resync compares the works that agents hold
// with the ledger; wire encodes and decodes CloudEvents; fairqueue queues events of agents until they
// are handled; presence reports to CLM which agents are connected; rpcauth authenticates and
// authorizes gRPC callers; apierror has the errors that clients
// see; database has the kinds and tables of the database; housekeeping deletes rows that are no longer needed;
// peers finds dead servers of the same database; original imports the database of openshift-online/maestro. This
// package has the server, which wires them, and its connection to the broker.
//
// It is a service: package cli composes it, and nothing else imports it.
package maestro

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/database"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/dispatch"
	"atoll.dev/maestro/housekeeping"
	"atoll.dev/maestro/intake"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/peers"
	"atoll.dev/maestro/presence"
	"atoll.dev/maestro/records"
	"atoll.dev/maestro/restapi"
	"atoll.dev/maestro/resync"
	"atoll.dev/maestro/rpcapi"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/store"
)

// Server is one Maestro. Several may share a database and a broker.
type Server struct {
	opts    Options
	log     *slog.Logger
	store   *store.Store
	ledger  *ledger.Ledger
	records *records.Writer
	bus     *bus.Pool // nil without a broker
	metrics *metrics

	feed     *store.Broadcast
	watches  *rest.WatchLimits
	auth     *rpcauth.Authorizer
	dispatch *dispatch.Dispatcher // sends works to agents
	comparer *resync.Comparer     // compares the agents' works with the ledger
	intake   *intake.Intake       // stores the statuses of agents
	contacts *presence.Tracker
	peers    *peers.Server // the other servers of the database
	keeper   *housekeeping.Housekeeper
	stopping chan struct{} // closed when Run begins to stop

	unknownStale atomic.Bool // unknown works changed since they were counted
}

// New opens the database, bringing its schema up to date, and returns a server
// that does nothing until Run. It owns the listeners from then on.
func New(ctx context.Context, o Options) (*Server, error) {
	o = o.withDefaults()
	switch {
	case o.HTTP == nil && o.Plain.HTTP == nil || o.GRPC == nil && o.Plain.GRPC == nil:
		return nil, errors.New("maestro: listeners are needed")
	case o.Broker == "" && !o.streams():
		return nil, errors.New("maestro: no way to reach agents: set a broker or a listener for agents")
	}
	if err := o.checkPlain(); err != nil {
		return nil, err
	}
	if err := o.Topics.CheckSource(o.SourceID); o.Broker != "" && err != nil {
		return nil, fmt.Errorf("maestro: %w", err)
	}
	auth, err := rpcauth.New(rpcauth.Options{
		RulesFile: o.RulesFile, Tokens: o.Tokens, MayCall: o.MayCallGRPC, Logger: o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("maestro: %w", err)
	}
	metrics := newMetrics(o.Metrics)
	st, err := openStore(ctx, o, metrics)
	if err != nil {
		return nil, fmt.Errorf("maestro: %w", err)
	}
	s := &Server{
		opts:     o,
		log:      o.Logger,
		store:    st,
		ledger:   ledger.New(st),
		metrics:  metrics,
		keeper:   housekeeping.New(st, o.Logger),
		stopping: make(chan struct{}),
		auth:     auth,
		watches:  rest.NewWatchLimits(o.WatchesPerCaller),
	}
	if err := s.connect(ctx); err != nil {
		st.Close()
		return nil, fmt.Errorf("maestro: %w", err)
	}
	return s, nil
}

// openStore opens the database, bringing its schema up to date.
func openStore(ctx context.Context, o Options, metrics *metrics) (*store.Store, error) {
	options := database.Options(o.DSN, o.MaxConns, o.Logger)
	if o.Adapt != nil {
		options = o.Adapt(options)
	}
	options.Envelope, options.SealingProgress = o.Envelope, metrics.sealing()
	return store.Open(ctx, options)
}

// connect makes the parts of the server that use its store and each other, and adds their readiness checks.
func (s *Server) connect(ctx context.Context) (err error) {
	o, st := s.opts, s.store
	s.records = records.New(records.Options{
		Store:          st,
		Agents:         agentOrders{s},
		Accepting:      s.checkAccepting,
		CheckSize:      s.checkSize,
		Count:          s.metrics.processed,
		UnknownChanged: s.unknownChanged,
		Logger:         o.Logger,
	})
	s.peers, err = peers.Open(ctx, peers.Options{
		Store: st, AskAll: func() { s.comparer.AskAll() }, DeadServers: s.metrics.deadServers, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	s.contacts = presence.New(presence.Options{
		Store:       st,
		Logger:      o.Logger,
		CLM:         o.CLM,
		LostAfter:   o.LostAfter,
		ReportEvery: o.ReportEvery,
		Leads:       s.peers.Leads,
	})
	s.feed = st.NewBroadcast(s.contacts.ForgetRemoved)
	if err := s.feed.Begin(ctx); err != nil {
		return err
	}
	if o.Broker != "" {
		s.bus = s.newBus()
	}
	s.dispatch = dispatch.New(s.dispatchOptions())
	s.comparer = resync.New(s.resyncOptions())
	s.intake = intake.New(intake.Options{
		RecordHosting: s.contacts.RecordHosting,
		Store:         st,
		Delivery:      s.dispatch,
		Resync:        s.comparer,
		SourceID:      o.SourceID,
		Dropped:       s.metrics.dropped,
		Batch:         s.metrics.batch,
		Logger:        o.Logger,
	})
	if o.Ops != nil {
		o.Ops.Check("database", st.Ping)
		o.Ops.Check("feed", s.feed.Check)
		if s.bus != nil {
			o.Ops.Check("broker", s.bus.Check)
		}
	}
	return nil
}

// dispatchOptions returns the parts of the server that the delivery of works uses.
func (s *Server) dispatchOptions() dispatch.Options {
	o := dispatch.Options{
		Store:    s.store,
		Ledger:   s.ledger,
		Feed:     s.feed,
		Streams:  s.opts.streams(),
		DSN:      s.opts.DSN,
		SourceID: s.opts.SourceID,
		Life:     s.peers.Life,
		Times: delivery.Config{
			Window:    s.opts.Window,
			Base:      s.opts.RetryBase,
			Max:       s.opts.RetryMax,
			DeleteMax: s.opts.DeleteMax,
			Jitter:    rand.Float64,
		},
		Repeated: func(consumer work.Consumer, ids []work.ID) { s.comparer.AskRepeated(consumer, ids) },
		Gained: func() {
			if s.opts.Topics.AgentEvents.Group == "" {
				s.comparer.AskAll() // no server answered comparisons that arrived while the slots had no holder
			}
		},
		Metrics: s.metrics.dispatch(),
		Logger:  s.log,
	}
	if s.bus != nil {
		o.Broker = s.sendToBroker
	}
	return o
}

// resyncOptions returns the parts of the server that comparisons use.
func (s *Server) resyncOptions() resync.Options {
	return resync.Options{
		Store:          s.store,
		Ledger:         s.ledger,
		Records:        s.records,
		Agents:         s.dispatch,
		SourceID:       s.opts.SourceID,
		Life:           s.peers.Life,
		Room:           s.roomForData,
		UnknownChanged: s.unknownChanged,
		Dropped:        s.metrics.dropped,
		Took:           s.metrics.resync,
		Logger:         s.log,
	}
}

// rpcOptions returns the parts of the server that both gRPC services use.
func (s *Server) rpcOptions() rpcapi.Options {
	return rpcapi.Options{
		Auth:        s.auth,
		Heartbeat:   s.opts.Heartbeat,
		Stuck:       s.opts.Stuck,
		Recheck:     s.opts.Recheck,
		Grace:       s.opts.ShutdownGrace,
		PlainErrors: s.opts.PlainErrors,
		Stopping:    s.stopping,
		Metrics:     s.metrics.rpc(),
		Logger:      s.log,
	}
}

// restOptions returns the parts of the server that the REST API uses.
func (s *Server) restOptions() restapi.Options {
	return restapi.Options{
		Store:       s.store,
		Ledger:      s.ledger,
		Feed:        s.feed,
		Records:     s.records,
		Watches:     s.watches,
		AskSpecs:    s.comparer.AskSpecs,
		Life:        s.peers.Life,
		MayCall:     s.opts.MayCall,
		CORSOrigins: s.opts.CORSOrigins,
		Metrics:     s.opts.Metrics,
		Watchers:    s.metrics.watchers,
		Logger:      s.log,
	}
}

// recordContact notes that an event of a consumer's agent arrived, for delivery and presence.
func (s *Server) recordContact(consumer work.Consumer) {
	s.dispatch.RecordContact(consumer)
	s.contacts.RecordContact(consumer)
}

// Run serves until ctx ends. Then it ends streams and watches at once, finishes
// requests under way, and stores the statuses that it read from the broker.
func (s *Server) Run(ctx context.Context) error {
	defer s.store.Close()
	// The servers stop first, then the inner parts that requests rely on.
	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInner()
	outer, stopOuter := context.WithCancel(ctx)
	defer stopOuter()

	parts, inner := errgroup.WithContext(inner)
	part := func(run func(context.Context) error) {
		parts.Go(func() error {
			err := run(inner)
			if err != nil {
				stopOuter() // no request works without this part
			}
			return err
		})
	}
	part(s.feed.Run)
	if s.bus != nil {
		part(s.bus.Run)
	}
	part(s.auth.Run)
	part(s.dispatch.Run)
	part(s.comparer.Run)
	part(s.intake.Run)
	part(s.runUnknownGauge)
	part(s.keeper.Run)
	part(s.peers.Run)
	part(s.contacts.Run)

	var servers errgroup.Group
	handler := restapi.Handler(s.restOptions())
	web := func(name string, l net.Listener, config *tls.Config) {
		if l == nil {
			return
		}
		config = config.Clone() // package http changes it
		w := &rest.Server{Name: name, Handler: handler, TLS: config, Log: s.log, Grace: s.opts.ShutdownGrace,
			MaxHeaderBytes: 2 * restapi.MaxSearch} // searches are in the request's line
		servers.Go(func() error {
			defer stopOuter()
			return w.Run(outer, l)
		})
	}
	web("maestro", s.opts.HTTP, s.opts.HTTPTLS)
	web("maestro, plain", s.opts.Plain.HTTP, nil)
	rpc := func(service *rpcapi.Service, port rpcapi.Port) {
		if port.Listener == nil {
			return
		}
		servers.Go(func() error {
			defer stopOuter()
			return service.Serve(outer, port)
		})
	}
	o := s.opts
	sources := rpcapi.NewSources(s.rpcOptions(), rpcapi.Sources{
		Store: s.store, Ledger: s.ledger, Feed: s.feed, Records: s.records, AnySource: o.AnySource,
	})
	agents := rpcapi.NewAgents(s.rpcOptions(), rpcapi.Agents{
		Streams: s.dispatch, Intake: s.intake, RecordContact: s.recordContact,
	})
	rpc(sources, rpcapi.Port{Listener: o.GRPC, TLS: o.GRPCTLS, Foreign: o.ForeignGRPC})
	rpc(sources, rpcapi.Port{Listener: o.Plain.GRPC})
	rpc(agents, rpcapi.Port{Listener: o.Agents, TLS: o.AgentsTLS, Foreign: o.ForeignAgents})
	rpc(agents, rpcapi.Port{Listener: o.Plain.Agents})
	<-outer.Done()
	close(s.stopping)
	err := servers.Wait()
	stopInner()
	return errors.Join(err, parts.Wait())
}
