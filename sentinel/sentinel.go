package sentinel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Kind is a kind of resources.
type Kind struct {
	Kind   store.Kind
	Plural string // the resource_type of configurations
	// Parent is the kind of the owner, whose id is the scope of an owned resource; ""
	// for kinds without owner. A change of an owner makes its resources due, and the
	// removal of a resource makes its owner due.
	Parent store.Kind
}

// Options are the parameters of New. Store, Feed, Kinds and Bus are needed.
type Options struct {
	Store *store.Store
	Feed  *store.Broadcast // of all of the store's kinds; the caller runs it

	Kinds   []Kind   // all kinds of resources
	Configs []Config // at most one for each kind; default: DefaultConfig of each kind

	// Requests is the kind of documents whose spec requests events: {"kind","id"} for one
	// resource, without id for all of the kind, without kind for all. "": there are none.
	Requests store.Kind

	// Bus has the broker's address, the certificate and the client id (default: clm-, the
	// name, and a random part). The sentinel sets the other fields.
	Bus bus.ClientOptions

	// Name distinguishes replicas. A replica keeps its name over a restart, so that it
	// takes the slots of the killed process at once, before their lease ends; default:
	// the host's name. Fleet distinguishes sentinels of one database that have different
	// resources; default "default".
	Name, Fleet string

	Lease  time.Duration // of slots; default 4 s. Renewed four times as often
	Policy Policy
	// Pace is how many routine events the sentinel sends in a second: those of timers, of adapters that connect, and
	// of requests for all resources; default 200.
	Pace float64

	// Trace returns the traceparent of a document's event, "" for none. nil: no event
	// has one.
	Trace func(store.Document) string

	Version string
	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
	Ops     *rest.Ops // gets the readiness checks sentinel and sentinel-broker, and GET /sentinel?id=; may be nil
	// Process is the process that the sentinel runs in. The API of CLM's process accepts writes while the broker is
	// down, and the sentinel sends their events later; so its readiness does not depend on the broker.
	Process Process
}

func (o Options) withDefaults() (Options, error) {
	if o.Store == nil || o.Feed == nil || len(o.Kinds) == 0 || o.Bus.Addr == "" {
		return o, errors.New("sentinel: Options need Store, Feed, Kinds and Bus.Addr")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return o, fmt.Errorf("sentinel: reading the host's name: %w", err)
		}
		o.Name = host
	}
	if o.Fleet == "" {
		o.Fleet = "default"
	}
	if o.Lease == 0 {
		o.Lease = 4 * time.Second
	}
	if o.Pace == 0 {
		o.Pace = 200
	}
	if o.Bus.ClientID == "" {
		// The broker closes the older of two connections with one client id; each would reconnect without end.
		o.Bus.ClientID = "clm-" + o.Name + "-" + uuid.NewString()[:8]
	}
	o.Policy = o.Policy.withDefaults()
	return o, nil
}

// Sentinel is one replica. The caller calls New, then Run once. Check and Lookup may be called concurrently.
type Sentinel struct {
	opts       Options
	log        *slog.Logger
	store      *store.Store
	client     *bus.Client
	metrics    *metrics
	policy     Policy
	watched    map[store.Kind]*watchedKind
	kinds      []store.Kind
	membership *membership

	mail      mailbox       // functions that other goroutines give the loop to run
	toPublish chan outgoing // events for publishEvents; the loop never enqueues more than its capacity
	toRead    chan []key    // keys of documents that readDue reads

	leaseRenewedAt atomic.Int64 // in microseconds since 1970
	slotsRead      atomic.Bool  // the resources of all held slots were read
	wasReady       atomic.Bool  // slotsRead was true once; further slots do not make the replica unready

	listDecisions atomic.Int64 // decisions on listed documents, for tests

	// Only the loop uses these:
	table              *table
	subscription       *store.Subscription
	slots              [slots]slot
	lastEpoch          uint64 // of the last call of loadSlots
	lastRound          uint64 // of the feed, handled by the loop
	checkpoints        []checkpoint
	connected          bool // to the broker
	inFlight           int  // events handed to publishEvents without an outcome yet
	isReading          bool // readDue has a batch
	routineLimit       *rate.Limiter
	removedDuringLoad  map[key]int64 // versions of removed documents
	requestsDuringLoad []request     // applied once more to slots that are being read
	warnLimit          *rate.Limiter
	startGoroutine     func(func(context.Context)) // starts a goroutine that ends with the loop's context
}

// slot is one slot as the loop sees it.
type slot struct {
	epoch      uint64       // 0: another replica has the slot
	ready      bool         // the resources of the slot were read
	cursor     store.Cursor // the cursor in the database
	loadedFrom store.Cursor // a cursor of the feed from before the resources were read
}

// checkpoint is a round of the feed and the cursor after it.
type checkpoint struct {
	round  uint64
	cursor store.Cursor
}

// Limits of work in flight.
const (
	maxInFlight    = 256 // events, to the broker
	maxReadBatch   = 200 // documents, from the database
	maxCheckpoints = 256 // checkpoints
)

// New checks the configuration, creates the sentinel's tables in the database, and returns
// a sentinel that does nothing until Run.
func New(ctx context.Context, o Options) (*Sentinel, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Sentinel{
		opts: o, log: o.Logger, store: o.Store, metrics: newMetrics(o.Metrics,
			o.Version), policy: o.Policy, watched: map[store.Kind]*watchedKind{},
		membership: newMembership(o.Store, o.Fleet, o.Name, o.Lease),
		mail:       mailbox{woken: make(chan struct{}, 1)}, toPublish: make(chan outgoing,
			maxInFlight+2*maxReadBatch), toRead: make(chan []key, 1),
		table: newTable(), removedDuringLoad: map[key]int64{}, routineLimit: rate.NewLimiter(rate.Limit(o.Pace),
			max(1, int(o.Pace/10))), warnLimit: rate.NewLimiter(1, 10),
	}
	if len(o.Configs) == 0 {
		for _, k := range o.Kinds {
			o.Configs = append(o.Configs, DefaultConfig(k.Plural))
		}
	}
	for _, c := range o.Configs {
		if err := s.addConfig(c); err != nil {
			return nil, fmt.Errorf("sentinel: %w", err)
		}
	}
	if err := o.Store.Migrate(ctx, "sentinel", migrations); err != nil {
		return nil, fmt.Errorf("sentinel: %w", err)
	}
	client := o.Bus
	client.Structured, client.Subscriptions = true, []string{bus.HelloTopic("#")}
	client.Handler, client.OnConnected, client.RequireSubscriber = s.handleHello, s.trackConnection, true
	if client.Logger == nil {
		client.Logger = o.Logger
	}
	s.client = bus.NewClient(client)
	if o.Ops != nil {
		o.Ops.Check("sentinel", s.Check)
		if o.Process == OwnProcess {
			o.Ops.Check("sentinel-broker", s.client.Check)
		}
		o.Ops.Handle("GET /sentinel", s.serveLookup)
	}
	return s, nil
}

// addConfig compiles a configuration and adds its kind to the watched ones. A second configuration
// of a kind is an error, and so is an unknown kind.
func (s *Sentinel) addConfig(c Config) error {
	c.fill()
	compiled, err := c.Compile()
	if err != nil {
		return fmt.Errorf("%s: %w", c.ResourceType, err)
	}
	for _, k := range s.opts.Kinds {
		if k.Plural != c.ResourceType {
			continue
		}
		if s.watched[k.Kind] != nil {
			return fmt.Errorf("resource_type %s has two configurations", c.ResourceType)
		}
		s.watched[k.Kind] = &watchedKind{
			kind:       k,
			topic:      bus.EventTopic(c.Clients.Broker.Topic),
			helloTopic: c.Clients.Broker.Topic,
			rules:      compiled,
			labels:     []string{c.ResourceType, selectorLabel(c.ResourceSelector)},
		}
		s.kinds = append(s.kinds, k.Kind)
		return nil
	}
	return fmt.Errorf("resource_type %q is not the plural of a kind", c.ResourceType)
}

// Check is a readiness check: it returns an error until the replica holds slots, renews
// their lease and has read the resources of its first slots.
func (s *Sentinel) Check(context.Context) error {
	switch last := s.leaseRenewedAt.Load(); {
	case last == 0:
		return errors.New("the replica holds no slot yet")
	case time.Since(time.UnixMicro(last)) > 3*s.opts.Lease:
		return errors.New("the replica cannot renew its lease")
	case !s.wasReady.Load():
		return errors.New("the replica reads the resources of its slots")
	}
	return nil
}

// Run sends events until ctx ends, then releases the slots.
func (s *Sentinel) Run(ctx context.Context) error {
	s.subscription = s.opts.Feed.Subscribe(s.isRelevant)
	defer func() { s.subscription.Close() }()
	var parts sync.WaitGroup
	inner, stop := context.WithCancel(ctx)
	for _, part := range []func(context.Context){
		func(ctx context.Context) { _ = s.client.Run(ctx) }, s.publishEvents, s.readDue, s.renewLeases,
	} {
		parts.Go(func() { part(inner) })
	}
	s.loop(inner, &parts)
	stop()
	s.mail.close()
	parts.Wait()
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.membership.leave(leave, s.cursors()); err != nil {
		s.log.Warn("the sentinel cannot release its slots; other replicas take them when the lease ends", "error", err)
	}
	return nil
}

// isRelevant reports whether a change of the feed is of a kind of the sentinel, or a request.
func (s *Sentinel) isRelevant(c *store.Change) bool {
	return s.watched[c.Kind] != nil || c.Kind == s.opts.Requests && c.Kind != ""
}

// mailbox queues functions that the loop runs for other goroutines.
type mailbox struct {
	mu     sync.Mutex
	queued []func()
	closed bool
	woken  chan struct{}
}

// post queues a function and never blocks. After close it drops the function.
func (m *mailbox) post(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.queued = append(m.queued, f)
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// call posts a function and waits until the loop has run it. It returns false if ctx ends
// first. The loop may still run the function then.
func (m *mailbox) call(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	m.post(func() { f(); close(done) })
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// take returns the queued functions and empties the mailbox.
func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.queued
	m.queued = nil
	return all
}

// close drops the queued functions and all later ones.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.queued = true, nil
}
