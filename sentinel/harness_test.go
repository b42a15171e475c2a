package sentinel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/bus"
	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/pgtest"
	"atoll.dev/pki"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// world is a database with documents as CLM has them, and a broker.
type world struct {
	t      testing.TB
	store  *store.Store
	dsn    string
	broker *testsite.Broker
	log    *slog.Logger
}

func newWorld(t testing.TB) *world {
	t.Helper()
	site := testsite.New(t)
	w := &world{t: t, dsn: pgtest.DSN(t), log: site.Log}
	w.store = w.open()
	w.broker = site.StartBroker()
	return w
}

const (
	cluster  store.Kind = "Cluster"
	channel  store.Kind = "Channel" // a kind without adapters
	requests store.Kind = "Request"
)

// connections opens connections to the database until cutAll, which closes all of them.
type connections struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (x *connections) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cut {
		return nil, errors.New("the connections are cut")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err == nil {
		x.conns = append(x.conns, conn)
	}
	return conn, err
}

func (x *connections) cutAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cut = true
	for _, c := range x.conns {
		c.Close()
	}
}

func (w *world) open() *store.Store { return w.openWith(&connections{}) }

func (w *world) openWith(x *connections) *store.Store {
	w.t.Helper()
	st, err := store.Open(w.t.Context(), store.Options{DSN: w.dsn, Hooks: store.Hooks{Dial: x.dial},
		Kinds: []store.KindSpec{{Kind: cluster, Render: render}, {Kind: channel, Render: render},
			{Kind: requests}}}.Patient())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(st.Close)
	return st
}

type testSpec struct {
	Labels map[string]string `json:"labels,omitempty"`
	Spec   any               `json:"spec"`
}

type testCondition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	ObservedGeneration int64     `json:"observed_generation"`
	LastUpdatedTime    time.Time `json:"last_updated_time"`
}

type testStatus struct {
	Conditions []testCondition `json:"conditions"`
	Reports    []any           `json:"reports"`
}

// render makes the wire form as CLM does, in what matters here.
func render(d store.Document) ([]byte, error) {
	var spec testSpec
	var status testStatus
	if err := json.Unmarshal(d.Spec, &spec); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(d.Status, &status); err != nil {
		return nil, err
	}
	wire := map[string]any{
		"id": d.ID, "kind": d.Kind, "name": d.Name, "href": "/api/hyperfleet/v1/" + plurals[d.Kind] + "/" + d.ID,
		"generation": d.Generation,
		"labels":     spec.Labels, "spec": spec.Spec, "status": map[string]any{"conditions": status.Conditions},
		"created_time": d.CreatedAt, "updated_time": d.CreatedAt,
	}
	if d.DeletedAt != nil {
		wire["deleted_time"] = d.DeletedAt
	}
	return json.Marshal(wire)
}

var plurals = map[store.Kind]string{cluster: "clusters", channel: "channels"}

// must ends the test on an error.
func must[T any](t testing.TB, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func encoded(t testing.TB, v any) json.RawMessage {
	data, err := json.Marshal(v)
	return must(t, data, err)
}

// reconciled returns a status with the condition Reconciled.
func reconciled(status string, generation int64, message string, at time.Time) testStatus {
	return testStatus{Conditions: []testCondition{{"Reconciled", status, "Test", message, generation, at}}}
}

// create makes a resource as a POST does. A cluster is not reconciled.
func (w *world) create(kind store.Kind, id string, labels map[string]string) store.Document {
	w.t.Helper()
	status := testStatus{Conditions: []testCondition{}}
	if kind == cluster {
		status = reconciled("False", 1, "nobody has reported", time.Now().UTC())
	}
	d, err := w.store.Create(w.t.Context(), store.Document{Kind: kind, ID: id, Name: id,
		Spec: encoded(w.t, testSpec{labels, map[string]any{"n": 0}}), Status: encoded(w.t, status)})
	return must(w.t, d, err)
}

// change makes the next generation, as a PATCH does.
func (w *world) change(kind store.Kind, id string, n int) {
	w.t.Helper()
	_, _, err := w.store.Update(w.t.Context(), kind, id, 0, func(d *store.Document) error {
		var spec testSpec
		if err := json.Unmarshal(d.Spec, &spec); err != nil {
			return err
		}
		spec.Spec = map[string]any{"n": n}
		d.Spec = encoded(w.t, spec)
		if kind == cluster {
			d.Status = encoded(w.t, reconciled("False", d.Generation+1, "", time.Now().UTC()))
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// report changes the condition of a cluster, at its generation.
func (w *world) report(id, status, message string, at time.Time) {
	w.t.Helper()
	_, _, err := w.store.Update(w.t.Context(), cluster, id, 0, func(d *store.Document) error {
		d.Status = encoded(w.t, reconciled(status, d.Generation, message, at.UTC()))
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) startBroker() { w.broker.Start() }

func (w *world) stopBroker() { w.broker.Stop() }

func (w *world) client(service string, o bus.ClientOptions) bus.ClientOptions {
	own := w.broker.ClientOptions(pki.ServiceName(service))
	o.Addr, o.TLS, o.MaxBackoff = own.Addr, own.TLS, 200*time.Millisecond
	return o
}

// replica is a running sentinel.
type replica struct {
	*Sentinel
	registry *prometheus.Registry
	stop     func() // releases the slots
	kill     func() // cuts the connections to the database first, as kill -9 does
}

// start runs a replica, and returns when it is ready.
func (w *world) start(name string, set ...func(*Options)) *replica {
	w.t.Helper()
	r := w.startUnready(name, set...)
	w.wait("the replica is ready", func() bool {
		return r.Check(w.t.Context()) == nil && inside(
			r, func() bool { return r.connected })
	})
	return r
}

// startUnready runs a replica with a store of its own, and does not wait until it is ready.
func (w *world) startUnready(name string, set ...func(*Options)) *replica {
	w.t.Helper()
	x := &connections{}
	st := w.openWith(x)
	feed := st.NewBroadcast(nil)
	must(w.t, 0, feed.Begin(w.t.Context())) // as CLM does
	r := &replica{registry: prometheus.NewRegistry()}
	o := Options{
		Store: st, Feed: feed, Kinds: []Kind{{cluster, "clusters", ""},
			{channel, "channels", ""}}, Requests: requests, Name: name, Version: "test",
		Bus: w.client("clm", bus.ClientOptions{}), Logger: w.log.With("replica",
			name), Metrics: r.registry, Lease: 3 * time.Second,
	}
	for _, f := range set {
		f(&o)
	}
	s, err := New(w.t.Context(), o)
	r.Sentinel = must(w.t, s, err)
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { _ = feed.Run(ctx) })
	parts.Go(func() { _ = s.Run(ctx) })
	r.stop = sync.OnceFunc(func() { cancel(); parts.Wait() })
	r.kill = func() {
		x.cutAll()
		r.stop()
	}
	w.t.Cleanup(r.stop)
	return r
}

// adapter receives events, like an adapter's process.
type adapter struct {
	t      testing.TB
	events chan received
	client *bus.Client
	stop   func()
}

type received struct {
	Event bus.Event
	Data  struct {
		ID         string `json:"id"`
		Kind       string `json:"kind"`
		Href       string `json:"href"`
		Generation int64  `json:"generation"`
	}
	At time.Time
}

func (w *world) adapter(subscription, topic string) *adapter {
	w.t.Helper()
	a := &adapter{t: w.t, events: make(chan received, 100_000)}
	up := make(chan struct{}, 1000)
	var client *bus.Client
	client = bus.NewClient(w.client("adapter", bus.ClientOptions{
		ClientID: "adapter-" + subscription, Subscriptions: []string{bus.EventFilter(subscription, topic)},
		Handler: func(_ context.Context, m bus.Message) {
			m.Ack()
			h := received{Event: m.Event, At: time.Now()}
			if err := json.Unmarshal(m.Event.Data, &h.Data); err != nil {
				w.t.Errorf("the data of an event: %v", err)
			}
			a.events <- h
		},
		OnConnected: func(ctx context.Context) {
			data := encoded(w.t, bus.Hello{Adapter: subscription, Topic: topic})
			_ = client.Publish(ctx, bus.HelloTopic(topic), bus.Event{ID: fmt.Sprint(time.Now().UnixNano()),
				Source: subscription, Type: bus.HelloType, DataContentType: "application/json", Data: data})
			up <- struct{}{}
		},
	}))
	a.client = client
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = client.Run(ctx) }()
	a.stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(a.stop)
	select {
	case <-up:
	case <-time.After(3 * time.Minute):
		w.t.Fatal("the adapter does not connect")
	}
	return a
}

// waitFor reads events until one fits, and returns that one.
func (a *adapter) waitFor(what string, fits func(received) bool) received {
	a.t.Helper()
	deadline := time.After(3 * time.Minute)
	for {
		select {
		case h := <-a.events:
			if fits(h) {
				return h
			}
		case <-deadline:
			a.t.Fatalf("no event came within 3 minutes: %s", what)
		}
	}
}

// waitForEvent waits for an event of a resource, at a generation.
func (a *adapter) waitForEvent(id string, generation int64) received {
	a.t.Helper()
	return a.waitFor(fmt.Sprintf("of %s at %d", id, generation), func(h received) bool {
		return h.Data.ID == id && h.Data.Generation == generation
	})
}

// wait waits for a condition.
func (w *world) wait(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(3 * time.Minute); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("after 3 minutes still not: %s", what)
		}
	}
}

// inside calls f in the goroutine of the sentinel's loop, and returns its result.
func inside[T any](r *replica, f func() T) (v T) {
	done := make(chan struct{})
	r.mail.post(func() { v = f(); close(done) })
	<-done
	return v
}
