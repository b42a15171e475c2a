package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// Options configure an agent: its consumer, its cluster and its server.
type Options struct {
	// Consumer is the management cluster's name: its place in topics.
	Consumer work.Consumer
	// Kube connects to the management cluster. Its rate limits are replaced.
	Kube *rest.Config
	// Bus connects to the region: address, TLS, credentials. Client id, topics
	// and handlers are the agent's own.
	Bus bus.ClientOptions
	// Topics are where the agent and its server meet over Bus; default Maestro's.
	Topics bus.Topics
	// GRPC connects to the region in place of Bus.
	GRPC *GRPCOptions
	// BrokerHost is the broker's address exactly as configured. Its hash names
	// the agent's AppliedManifestWorks: with another address it is another agent.
	BrokerHost string
	// AgentID is written into AppliedManifestWorks. Default: the hash of BrokerHost.
	AgentID string
	// ClientID is the MQTT client id. Default: see ClientID; Atoll's broker
	// admits no other.
	ClientID string
	// DataDir keeps the works. It holds Secrets.
	DataDir string

	Log     *slog.Logger          // default slog.Default()
	Metrics prometheus.Registerer // default none

	FieldManager string        // default work-agent
	Workers      int           // concurrent calls to the API server; default 16
	QPS          float32       // of calls to the API server; default 1000
	Burst        int           // default 2000
	MaxJSONRaw   int           // longest JsonRaw feedback in bytes; default 1 MiB
	SendWindow   int           // statuses on their way at once; default 64
	PublishRate  float64       // events published per second, without heartbeats; default 200
	PublishBurst int           // of them at once after a pause; default five times PublishRate
	SeenEvery    time.Duration // interval of the heartbeats; default 10 s
	CompareEvery time.Duration // interval of the comparisons of digests with the server; default 5 min
	// Wall returns the time of day for a reading of the clock, for tests of clocks that
	// step. Default: the same time.
	Wall func(time.Time) time.Time

	ListAfter time.Duration // when a server that does not compare digests gets the list; default 2 s
}

func (o Options) withDefaults() Options {
	set := func(p *int, d int) {
		if *p == 0 {
			*p = d
		}
	}
	if o.AgentID == "" {
		o.AgentID = hubHash(o.BrokerHost)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.FieldManager == "" {
		o.FieldManager = workv1.DefaultFieldManager
	}
	if o.QPS == 0 {
		o.QPS = 1000
	}
	if o.SeenEvery == 0 {
		o.SeenEvery = 10 * time.Second
	}
	set(&o.Workers, 16)
	set(&o.Burst, 2000)
	set(&o.MaxJSONRaw, 1<<20)
	set(&o.SendWindow, 64)
	if o.PublishRate <= 0 {
		o.PublishRate = 200
	}
	set(&o.PublishBurst, max(int(5*o.PublishRate), 1))
	return o
}

// consumerName matches the names that a topic and a certificate can have.
var consumerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (o Options) check() error {
	_, topicsErr := o.topics()
	switch {
	case !consumerName.MatchString(string(o.Consumer)):
		return fmt.Errorf("consumer name %q is no RFC 1123 label", o.Consumer)
	case o.Kube == nil:
		return errors.New("no configuration of the management cluster")
	case o.GRPC == nil && o.Bus.Addr == "":
		return errors.New("no address of the broker")
	case topicsErr != nil:
		return topicsErr
	case o.BrokerHost == "":
		return errors.New("no broker host")
	case o.DataDir == "":
		return errors.New("no data directory")
	}
	return nil
}

// Agent serves one management cluster. Make it with New, run it once.
type Agent struct {
	o       Options
	store   *store
	core    *core
	kube    *kube
	watcher *watcher
	wire    wire
	inbox   *inbox
	pool    *pool
	metrics *metrics
	log     *slog.Logger

	link   link
	sender *sender
	synced atomic.Bool // the AppliedManifestWorks are known
	// hosting is the last report of hosting on the management cluster; nil when there is none.
	hosting atomic.Pointer[work.HostingReport]
	probes  sync.WaitGroup
	start   []effect
}

// New opens the agent's store. It connects to nothing yet.
func New(o Options) (*Agent, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{o: o, inbox: newInbox(), log: o.Log}
	a.metrics = newMetrics(o.Metrics)
	a.link = a.newLink(o.Bus)
	a.sender = newSender(o.PublishRate, o.PublishBurst, a.link.Connected)
	cfg := rest.CopyConfig(o.Kube)
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(o.QPS, o.Burst) // one for all clients
	cfg.UserAgent = "atoll-agent"
	cfg.WarningHandler = rest.NoWarnings{}
	hash := hubHash(o.BrokerHost)
	var err error
	if a.kube, err = newKube(cfg, newRegistry(), o.Consumer, hash, o.AgentID); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if a.store, err = openStore(o.DataDir, o.Consumer, o.Log); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a.watcher = newWatcher(a.kube, o.Log, a.inbox.post)
	a.wire = wire{consumer: o.Consumer, source: string(o.Consumer) + "-agent", now: time.Now}
	a.core = newCore(coreConfig{
		consumer: o.Consumer, hubHash: hash, agentID: o.AgentID, fieldManager: o.FieldManager,
		maxRaw: o.MaxJSONRaw, sendWindow: o.SendWindow, resync: resync{listAfter: o.ListAfter,
			every: o.CompareEvery}, wallTime: o.Wall,
	})
	a.start = a.core.load(a.store.works, a.store.ceiling, time.Now())
	return a, nil
}

// ReadyKube returns nil while the management cluster's API server answers and the
// agent has read its AppliedManifestWorks there.
func (a *Agent) ReadyKube(ctx context.Context) error {
	if err := a.kube.checkReady(ctx); err != nil {
		return fmt.Errorf("the management cluster's API server: %w", err)
	}
	if !a.synced.Load() {
		return errors.New("the AppliedManifestWorks are not known yet; has the cluster been bootstrapped?")
	}
	return nil
}

// ReadyBus returns nil while the agent is connected to the bus.
func (a *Agent) ReadyBus(ctx context.Context) error { return a.link.Check(ctx) }

// ReadyStore returns nil while the last write to the store succeeded.
func (a *Agent) ReadyStore(context.Context) error { return a.store.failing() }

// Run serves until ctx ends. The next Run of a new Agent with the same data directory
// continues all unfinished work.
func (a *Agent) Run(ctx context.Context) error {
	// The store ends last, so that it writes the last records of all other parts.
	storeCtx, closeStore := context.WithCancel(context.WithoutCancel(ctx))
	var store sync.WaitGroup
	store.Go(func() { a.store.run(storeCtx) })

	ctx, cancel := context.WithCancel(ctx)
	a.pool = newPool(ctx, a.o.Workers, func(ctx context.Context, e effect) {
		a.inbox.post(a.metrics.timed(e, func() event { return a.kube.call(ctx, e) }))
	})
	var parts sync.WaitGroup
	var busErr error
	parts.Go(func() {
		defer cancel()
		busErr = a.link.Run(ctx)
	})
	parts.Go(func() { a.publishHeartbeats(ctx) })
	parts.Go(func() { a.watchHosting(ctx) })
	parts.Go(func() { a.sender.run(ctx) })
	a.watcher.watchAMWs(ctx)
	a.loop(ctx)

	cancel()
	a.pool.close()
	a.watcher.wg.Wait()
	parts.Wait()
	a.probes.Wait()
	closeStore()
	store.Wait()
	if busErr != nil {
		return fmt.Errorf("agent: %w", busErr)
	}
	return nil
}

// loop runs the core until ctx ends. Only this goroutine touches the core.
func (a *Agent) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	a.perform(ctx, a.start)
	for {
		for _, ev := range a.inbox.take() {
			if _, ok := ev.(evAMWsSynced); ok {
				a.synced.Store(true)
			}
			a.perform(ctx, a.core.step(ev, time.Now()))
		}
		wait := time.Hour
		if at := a.core.nextWake(); !at.IsZero() {
			wait = time.Until(at)
		}
		a.metrics.observe(a.core)
		timer.Reset(max(wait, 0))
		select {
		case <-ctx.Done():
			return
		case <-a.inbox.ready:
		case <-timer.C:
			a.perform(ctx, a.core.step(evTick{}, time.Now()))
		}
	}
}

// perform carries out effects, or gives them to the store, the sender, the watcher or
// the pool.
func (a *Agent) perform(ctx context.Context, effects []effect) {
	var watches []effWatch // after all wants of the step, so that the first listing shows them
	for _, e := range effects {
		switch e := e.(type) {
		case effPersist:
			a.persist(e)
		case effObserve:
			a.kube.registry.set(e.key, e.rules, e.managers)
		case effUnobserve:
			a.kube.registry.drop(e.key)
		case effWatch:
			watches = append(watches, e)
		case effWatchKinds:
			a.watcher.watchKinds(ctx)
		case effProbe:
			a.probe(ctx)
		case effResync:
			a.sender.add(func(ctx context.Context) { a.requestSpecs(ctx, e.versions) })
		case effPublish:
			a.sender.add(func(ctx context.Context) { a.publishComparison(ctx, e) })
		case effSend:
			a.sender.add(func(ctx context.Context) { a.sendStatus(ctx, e.event) })
		default:
			a.pool.add(e)
		}
	}
	for _, w := range watches {
		a.watcher.watchKind(ctx, w.gvr, w.scope)
	}
}

func (a *Agent) persist(e effPersist) {
	var done func()
	if e.ack != nil || e.then != nil {
		done = func() {
			if e.ack != nil {
				e.ack()
			}
			if e.then != nil {
				a.inbox.post(e.then)
			}
		}
	}
	a.store.append(e.rec, done)
}

// probeEvery is the pause between checks of an API server that does not answer.
const probeEvery = 200 * time.Millisecond

func (a *Agent) probe(ctx context.Context) {
	a.probes.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeEvery):
		}
		a.inbox.post(evProbed{up: a.kube.checkReady(ctx) == nil})
	})
}

// publishHeartbeats publishes an event every Options.SeenEvery while connected.
func (a *Agent) publishHeartbeats(ctx context.Context) {
	ticker := time.NewTicker(a.o.SeenEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if e, err := a.wire.seen(a.hosting.Load()); err == nil && a.link.Connected() {
				a.publish(ctx, e, func(error) {})
			}
		}
	}
}
