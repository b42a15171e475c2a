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
// or a status changes them; records stores these changes; restapi is the REST API; ledger has the rows
// of delivery; delivery decides which work is sent at which time; wire encodes and decodes CloudEvents;
// fairqueue queues events of agents until they are stored; presence reports to CLM which agents are
// connected; rpcauth authenticates and authorizes gRPC callers; apierror has the errors that clients
// see. This package has the server, its gRPC ports, the delivery of works, the intake of statuses and
// the comparison with agents.
//
// It is a service: package cli composes it, and nothing else imports it.
package maestro

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/presence"
	"atoll.dev/maestro/records"
	"atoll.dev/maestro/restapi"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/store"
)

// leaseInterval is the pause before a server opens a new session for its lease,
// or subscribes to the feed again, after a failure.
const leaseInterval = 250 * time.Millisecond

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
	delivery *deliverer // over the broker; nil without a broker
	agents   *agents    // nil when no agents connect by gRPC
	auth     *rpcauth.Authorizer
	ingest   *ingest
	resyncs  *resyncs
	asks     *statusAsks
	contacts *presence.Tracker
	instance string // this server's name among those that share the database
	asking   *askingQueue
	stopping chan struct{} // closed when Run begins to stop
	dbLife   atomic.Value  // string: the database's life, shortened
	leads    atomic.Bool   // this server reports the presence of agents to CLM

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
	st, err := store.Open(ctx, storeOptions(o.DSN, o.MaxConns, o.Logger))
	if err != nil {
		return nil, fmt.Errorf("maestro: %w", err)
	}
	s := &Server{
		opts:     o,
		log:      o.Logger,
		store:    st,
		ledger:   ledger.New(st),
		metrics:  newMetrics(o.Metrics),
		instance: uuid.NewString(),
		asking:   newAskingQueue(),
		stopping: make(chan struct{}),
		auth:     auth,
		watches:  rest.NewWatchLimits(o.WatchesPerCaller),
	}
	s.records = records.New(records.Options{
		Store:          st,
		Agents:         agentOrders{s},
		Accepting:      s.accepting,
		CheckSize:      s.checkSize,
		Count:          s.metrics.processed,
		UnknownChanged: s.unknownChanged,
		Logger:         o.Logger,
	})
	if o.streams() {
		s.agents = newAgents(s)
	}
	if err := s.readLife(ctx); err != nil {
		st.Close()
		return nil, fmt.Errorf("maestro: %w", err)
	}
	s.ingest = newIngest(s)
	s.resyncs = newResyncs(s)
	s.asks = newStatusAsks(s)
	s.contacts = presence.New(presence.Options{
		Store:       st,
		Logger:      o.Logger,
		CLM:         o.CLM,
		LostAfter:   o.LostAfter,
		ReportEvery: o.ReportEvery,
		Leads:       s.leads.Load,
	})
	s.feed = st.NewBroadcast(s.contacts.ForgetRemoved)
	if err := s.feed.Begin(ctx); err != nil {
		st.Close()
		return nil, fmt.Errorf("maestro: %w", err)
	}
	if o.Broker != "" {
		s.connectBroker()
	}
	if o.Ops != nil {
		o.Ops.Check("database", st.Ping)
		o.Ops.Check("feed", s.feed.Check)
		if s.bus != nil {
			o.Ops.Check("broker", s.bus.Check)
		}
	}
	return s, nil
}

// connectBroker creates the deliverer and the connections for MQTT. Run starts them.
func (s *Server) connectBroker() {
	o := s.opts
	s.delivery = newDeliverer(s, s.toBroker)
	s.delivery.leased = &heldSlots{}
	subscriptions := []string{o.Topics.AgentEvents.Filter()}
	if o.Topics.AgentBroadcast.Kind != "" {
		subscriptions = append(subscriptions, o.Topics.AgentBroadcast.Filter())
	}
	s.bus = bus.NewPool(bus.PoolOptions{Connections: o.Connections, Rate: o.PublishRate, Client: bus.ClientOptions{
		Addr:          o.Broker,
		TLS:           o.BrokerTLS,
		Keys:          o.BrokerKeys,
		Username:      o.BrokerUsername,
		Password:      o.BrokerPassword,
		ClientID:      o.BrokerClientID,
		KeepAlive:     o.BrokerTimes.KeepAlive,
		DialTimeout:   o.BrokerTimes.Dial,
		MaxMessage:    o.MaxMessage,
		Subscriptions: subscriptions,
		Handler: func(ctx context.Context, m bus.Message) {
			s.handleAgentEvent(ctx, m.Topic, m.Event, m.Ack)
		},
		OnConnected: s.onConnected,
		Logger:      o.Logger,
		Registerer:  o.Metrics,
	}})
}

// restOptions returns the parts of the server that the REST API uses.
func (s *Server) restOptions() restapi.Options {
	return restapi.Options{
		Store:       s.store,
		Ledger:      s.ledger,
		Feed:        s.feed,
		Records:     s.records,
		Watches:     s.watches,
		AskSpecs:    s.askSpecs,
		Life:        s.life,
		MayCall:     s.opts.MayCall,
		CORSOrigins: s.opts.CORSOrigins,
		Metrics:     s.opts.Metrics,
		Watchers:    s.metrics.watchers,
		Logger:      s.log,
	}
}

// storeOptions returns the options of Maestro's database: its kinds, indexes and migrations.
func storeOptions(dsn string, maxConns int, log *slog.Logger) store.Options {
	return store.Options{
		DSN: dsn, Logger: log, Migrations: migrations(), MaxConns: maxConns,
		Kinds: []store.KindSpec{
			{Kind: bundle.ConsumerKind, Render: bundle.RenderConsumer, Trail: true},
			{Kind: bundle.Kind, Begin: bundle.Begin, Render: bundle.Render, Trail: true, Indexes: []store.Index{
				{Name: "scope", On: "btree (scope, created_at)"},
				{Name: "created", On: "btree (created_at, id)"},
				{Name: "source", On: "btree ((spec->>'source'), id)"},
				restapi.LabelIndex,
			}},
		},
	}
}

// onConnected starts delivery over the broker, has all agents compare, and stops delivery
// when the connection ends.
func (s *Server) onConnected(ctx context.Context) {
	s.delivery.connected()
	s.askStatuses()
	<-ctx.Done()
	s.delivery.disconnected()
}

// accepting refuses writes when the broker is down for longer than BrokerGrace.
// They could be stored, but their delivery could take any time.
func (s *Server) accepting() error {
	if s.bus != nil && s.bus.DownFor() > s.opts.BrokerGrace {
		return apierror.Unavailable("the message broker is unavailable; try again")
	}
	return nil
}

// toBroker is the sendFunc for agents that connect by MQTT.
func (s *Server) toBroker(
	ctx context.Context,
	consumer string,
	encode func() (bus.Event, error),
	done func(error),
) error {
	return s.bus.PublishLate(ctx, s.specTopic(consumer), encode, done)
}

// publish sends a message that is not the delivery of a work, and returns when the
// carrier has it. Without a carrier to the consumer, publish drops the message:
// the agent sends a comparison when it connects.
func (s *Server) publish(ctx context.Context, consumer string, m bus.Event) error {
	d := s.carrierOf(consumer)
	if d == nil {
		return nil
	}
	done := make(chan error, 1)
	if err := d.send(ctx, consumer, func() (bus.Event, error) { return m, nil },
		func(err error) { done <- err }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliverers returns the deliverers of this server: over MQTT, over gRPC.
func (s *Server) deliverers() []*deliverer {
	var ds []*deliverer
	if s.delivery != nil {
		ds = append(ds, s.delivery)
	}
	if s.agents != nil {
		ds = append(ds, s.agents.delivery)
	}
	return ds
}

// carrierOf returns the deliverer for a consumer: the one of its stream, else the
// one of the broker, which may be nil.
func (s *Server) carrierOf(consumer string) *deliverer {
	if s.agents != nil {
		if d := s.agents.delivery; d.reaches(consumer) {
			return d
		}
	}
	return s.delivery
}

// recordContact notes that an event of a consumer's agent arrived, for delivery and presence.
func (s *Server) recordContact(consumer string) {
	for _, d := range s.deliverers() {
		d.recordContact(consumer)
	}
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
	if s.agents != nil {
		part(s.agents.run)
	}
	part(s.auth.Run)
	for _, d := range s.deliverers() {
		part(d.run)
		part(d.runAttemptLog)
	}
	if s.delivery != nil {
		part(s.runSlots)
		part(s.delivery.runFollow)
	}
	part(s.runAsking)
	part(s.asks.run)
	part(s.runUnknownGauge)
	part(s.runHousekeeping)
	part(s.runPresence)
	part(s.contacts.Run)
	for range ingestWorkers {
		part(s.ingest.run)
	}
	for range resyncWorkers {
		part(s.resyncs.run)
	}

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
	rpc := func(port rpcPort) {
		if port.listener == nil {
			return
		}
		g := s.newGRPC(port)
		servers.Go(func() error {
			defer stopOuter()
			return serveGRPC(outer, g, port.listener, s.opts.ShutdownGrace)
		})
	}
	toSources, toAgents := newSourcePort(s), &agentPort{s: s}
	o := s.opts
	rpc(rpcPort{listener: o.GRPC, config: o.GRPCTLS, foreign: o.ForeignGRPC, service: toSources})
	rpc(rpcPort{listener: o.Plain.GRPC, service: toSources})
	rpc(rpcPort{listener: o.Agents, config: o.AgentsTLS, foreign: o.ForeignAgents, service: toAgents})
	rpc(rpcPort{listener: o.Plain.Agents, service: toAgents})
	<-outer.Done()
	close(s.stopping)
	err := servers.Wait()
	stopInner()
	return errors.Join(err, parts.Wait())
}
