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
	Pace   float64 // events per second that timers, hellos and requests for all resources may cause; default 200

	// Trace returns the traceparent of a document's event, "" for none. nil: no event
	// has one.
	Trace func(store.Document) string

	Version string
	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
	Ops     *rest.Ops // gets the readiness checks sentinel and sentinel-broker, and GET /sentinel?id=; may be nil
	// Process says which process the sentinel runs in. The API of CLM's process accepts writes while the broker is
	// down, and the sentinel sends their events later; so its readiness does not depend on the broker.
	Process Process
}

func (o Options) withDefaults() (Options, error) {
	if o.Store == nil || o.Feed == nil || len(o.Kinds) == 0 || o.Bus.Addr == "" {
		return o, errors.New("sentinel: a store, its feed, kinds and a broker are needed")
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

// Sentinel is one replica. Use New, then Run.
type Sentinel struct {
	opts       Options
	log        *slog.Logger
	store      *store.Store
	client     *bus.Client
	metrics    *metrics
	policy     Policy
	duties     map[store.Kind]*duty
	kinds      []store.Kind
	membership *membership

	mail mailbox       // functions that other goroutines give the loop to run
	out  chan outgoing // events for publishEvents; its capacity is the most that the loop enqueues
	read chan []key    // documents for readDue

	alive  atomic.Int64 // when the lease was last renewed, in microseconds since 1970
	loaded atomic.Bool  // all held slots are read
	ready  atomic.Bool  // all held slots were read once; new slots do not make the replica unready

	listDecisions atomic.Int64 // decisions on documents of lists, for tests

	// Only the loop uses these:
	table   *table
	sub     *store.Subscription
	slots   [slots]slot
	epoch   uint64 // increases with each call of loadSlots
	round   uint64 // the last round of the feed that the loop has handled
	marks   []checkpoint
	up      bool // the connection to the broker stands
	sending int  // events in flight
	reading bool // readDue has a batch
	pace    *rate.Limiter
	removed map[key]int64 // versions of documents that were removed while slots were read
	waiting []request     // requests that came while slots were read
	badLog  *rate.Limiter
	start   func(func(context.Context)) // starts a goroutine that ends with the loop's context
}

// slot is one slot as the loop sees it.
type slot struct {
	epoch  uint64       // 0: another replica has the slot
	ready  bool         // the resources of the slot were read
	cursor store.Cursor // the saved cursor
	base   store.Cursor // a cursor of the feed from before the resources were read
}

// checkpoint is the cursor of the feed after a round.
type checkpoint struct {
	round  uint64
	cursor store.Cursor
}

// Limits of work in flight.
const (
	maxSending = 256 // events, to the broker
	maxReading = 200 // documents, from the database
	maxMarks   = 256 // checkpoints
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
			o.Version), policy: o.Policy, duties: map[store.Kind]*duty{},
		membership: newMembership(o.Store, o.Fleet, o.Name, o.Lease),
		mail:       mailbox{woken: make(chan struct{}, 1)}, out: make(chan outgoing,
			maxSending+2*maxReading), read: make(chan []key, 1),
		table: newTable(), removed: map[key]int64{}, pace: rate.NewLimiter(rate.Limit(o.Pace),
			max(1, int(o.Pace/10))), badLog: rate.NewLimiter(1, 10),
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
	if err := o.Store.Migrate(ctx, "sentinel", []string{tables}); err != nil {
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

// addConfig compiles a configuration and adds the duty of its kind. A second configuration
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
		if s.duties[k.Kind] != nil {
			return fmt.Errorf("resource_type %s has two configurations", c.ResourceType)
		}
		s.duties[k.Kind] = &duty{kind: k, topic: bus.EventTopic(c.Clients.Broker.Topic), hello: c.Clients.Broker.Topic,
			rules:  compiled,
			labels: []string{c.ResourceType, selectorLabel(c.ResourceSelector)}}
		s.kinds = append(s.kinds, k.Kind)
		return nil
	}
	return fmt.Errorf("resource_type %q is no kind's plural here", c.ResourceType)
}

// Check is a readiness check: it returns an error until the replica holds slots, renews
// their lease and has read the resources of its first slots.
func (s *Sentinel) Check(context.Context) error {
	switch last := s.alive.Load(); {
	case last == 0:
		return errors.New("no slot is held yet")
	case time.Since(time.UnixMicro(last)) > 3*s.opts.Lease:
		return errors.New("the lease is not renewed")
	case !s.ready.Load():
		return errors.New("resources are being read")
	}
	return nil
}

// Run sends events until ctx ends, then releases the slots.
func (s *Sentinel) Run(ctx context.Context) error {
	s.sub = s.opts.Feed.Subscribe(s.isRelevant)
	defer func() { s.sub.Close() }()
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
		s.log.Warn("the slots cannot be released; other replicas take them when the lease ends", "error", err)
	}
	return nil
}

// isRelevant reports whether a change of the feed is of a kind of the sentinel, or a request.
func (s *Sentinel) isRelevant(c *store.Change) bool {
	return s.duties[c.Kind] != nil || c.Kind == s.opts.Requests && c.Kind != ""
}

// mailbox holds functions that other goroutines give the loop to run.
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
