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
	// Parent is the kind of the resource that owns one, whose id is its scope; ""
	// for none. What waits for its owner, or for what it owns, is looked at when
	// that changes.
	Parent store.Kind
}

// Options are the parameters of New. Store, Feed, Kinds and Bus are needed.
type Options struct {
	Store *store.Store
	Feed  *store.Broadcast // of all of the store's kinds; somebody else runs it

	Kinds   []Kind   // that there are
	Configs []Config // at most one of a kind; default: DefaultConfig of each kind

	// Requests are documents whose spec asks for an event: {"kind","id"}, or
	// without id of all, or of all of a kind. "": there are none.
	Requests store.Kind

	// Bus says which broker, who connects, and the client id (default: clm-, the
	// name, and a random part). The rest is the sentinel's.
	Bus bus.ClientOptions

	// Name tells replicas apart, and is the same after a restart, so that a
	// killed process's slots need not wait for its lease to end; default: the
	// host's name. Fleet tells apart sentinels of one database that look after
	// different resources; default "default".
	Name, Fleet string

	Lease  time.Duration // of slots; default 4 s. Renewed four times as often
	Policy Policy
	Pace   float64 // events a second that the clock, hellos and requests for all may bring; default 200

	// Trace gives the traceparent that goes with a document's event, "" for
	// none; nil: never one.
	Trace func(store.Document) string

	Version string
	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
	Ops     *rest.Ops // gets the readiness checks sentinel and sentinel-broker, and GET /sentinel?id=; may be nil
	// Inside says that the process serves CLM's API, too, which takes writes while the broker is away (they are owed):
	// then its readiness does not depend on the broker.
	Inside bool
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
			return o, fmt.Errorf("sentinel: the host's name: %w", err)
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
		// Two of one name would end each other's connections without end.
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

	mail mailbox       // what other goroutines have for the loop
	out  chan outgoing // events for the broker, never more than fit
	read chan []key    // documents to be read

	alive  atomic.Int64 // when the lease was last renewed, in microseconds since 1970
	loaded atomic.Bool  // all slots that are held were read
	ready  atomic.Bool  // they were once; a change of hands is no reason to be thought broken

	// The loop's:
	table   *table
	sub     *store.Subscription
	slots   [slots]slot
	epoch   uint64 // counts what is put into slots
	round   uint64 // of the feed, dealt with
	marks   []checkpoint
	up      bool // the bus is
	sending int
	reading bool
	pace    *rate.Limiter
	removed map[key]int64 // versions of what was removed while slots were read
	waiting []request     // requests that came while slots were read
	badLog  *rate.Limiter
	start   func(func(context.Context)) // a goroutine that ends with the loop's context
}

// slot is one slot as the loop sees it.
type slot struct {
	epoch  uint64       // 0: another's
	ready  bool         // its resources were read
	cursor store.Cursor // as it is saved
	base   store.Cursor // where the feed stood, at least, before they were read
}

// checkpoint is where the feed stood after a round.
type checkpoint struct {
	round  uint64
	cursor store.Cursor
}

// Limits of what is under way at a time.
const (
	maxSending = 256 // events, to the broker
	maxReading = 200 // documents, from the database
	maxMarks   = 256 // checkpoints
)

// New checks the configuration and makes the sentinel's tables, and returns a
// sentinel that does nothing until Run.
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
		if err := s.take(c); err != nil {
			return nil, fmt.Errorf("sentinel: %w", err)
		}
	}
	if err := o.Store.Migrate(ctx, "sentinel", []string{tables}); err != nil {
		return nil, fmt.Errorf("sentinel: %w", err)
	}
	client := o.Bus
	client.Structured, client.Subscriptions = true, []string{bus.HelloTopic("#")}
	client.Handler, client.OnConnected, client.RequireSubscriber = s.greet, s.connected, true
	if client.Logger == nil {
		client.Logger = o.Logger
	}
	s.client = bus.NewClient(client)
	if o.Ops != nil {
		o.Ops.Check("sentinel", s.Check)
		if !o.Inside {
			o.Ops.Check("sentinel-broker", s.client.Check)
		}
		o.Ops.Handle("GET /sentinel", s.look)
	}
	return s, nil
}

// take adds a configuration.
func (s *Sentinel) take(c Config) error {
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
			return fmt.Errorf("there are two configurations of %s", c.ResourceType)
		}
		s.duties[k.Kind] = &duty{kind: k, topic: bus.EventTopic(c.Clients.Broker.Topic), hello: c.Clients.Broker.Topic,
			rules:  compiled,
			labels: []string{c.ResourceType, selectorLabel(c.ResourceSelector)}}
		s.kinds = append(s.kinds, k.Kind)
		return nil
	}
	return fmt.Errorf("resource_type %q is no kind's plural here", c.ResourceType)
}

// Check is a readiness check: the lease is renewed, and the resources of its
// first slots were read.
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

// Run works until ctx ends, then gives its slots back.
func (s *Sentinel) Run(ctx context.Context) error {
	s.sub = s.opts.Feed.Subscribe(s.concerns)
	defer func() { s.sub.Close() }()
	var parts sync.WaitGroup
	inner, stop := context.WithCancel(ctx)
	for _, part := range []func(context.Context){
		func(ctx context.Context) { _ = s.client.Run(ctx) }, s.sender, s.reader, s.beats,
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
		s.log.Warn("the slots were not given back; others take them when the lease ends", "error", err)
	}
	return nil
}

// concerns says whether the feed's change is of the sentinel's business.
func (s *Sentinel) concerns(c *store.Change) bool {
	return s.duties[c.Kind] != nil || c.Kind == s.opts.Requests && c.Kind != ""
}

// mailbox holds what other goroutines want done by the loop.
type mailbox struct {
	mu     sync.Mutex
	queued []func()
	closed bool
	woken  chan struct{}
}

// post never waits. After close it does nothing.
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

// call posts and waits until it is done; false if the loop, or ctx, has ended.
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

func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.queued
	m.queued = nil
	return all
}

func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.queued = true, nil
}
