package replicas

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"atoll.dev/adapter"
	apiclm "atoll.dev/api/clm"
	"atoll.dev/bus"
	"atoll.dev/client/clmclient"
	"atoll.dev/clm"
	"atoll.dev/internal/pgtest"
	"atoll.dev/pki"
	"atoll.dev/sentinel"
	"atoll.dev/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	entities = `entities: [{kind: Cluster, plural: clusters, required_adapters: [dns]}]`
	clusters = clmclient.Collection("clusters")
	lease    = 2 * time.Second
)

// work is under way until its context ends.
type work struct {
	replica string
	ctx     context.Context
}

// world is a lifecycle manager with its sentinel, and a broker.
type world struct {
	*testing.T
	ca     *pki.CA
	broker string
	clm    *clmclient.Client

	mu      sync.Mutex
	working map[string]work // who works on a resource
	runs    map[string]int  // by replica
	away    atomic.Bool
}

func newWorld(t *testing.T) *world {
	ca, err := pki.OpenCA(t.TempDir())
	w := &world{T: t, ca: must(t, ca, err), working: map[string]work{}, runs: map[string]int{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.broker = must(t, l, err).Addr().String()
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{
			w.certificate("broker")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	}})
	must(t, 0, err)
	w.run(func(ctx context.Context) error { return broker.Serve(ctx, l) })

	registry, err := clm.ParseRegistry([]byte(entities))
	must(t, 0, err)
	db, err := clm.Open(t.Context(), clm.DatabaseOptions{DSN: pgtest.DSN(t), Registry: registry})
	must(t, 0, err)
	t.Cleanup(db.Close)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, 0, err)
	server, err := clm.New(clm.Options{Database: db, Plain: plain, Identify: (&clm.Identity{Open: true}).Identify})
	must(t, 0, err)
	w.run(server.Run)
	s, err := sentinel.New(t.Context(), sentinel.Options{
		Store: db.Store, Feed: db.Feed, Name: "s", Kinds: []sentinel.Kind{
			{Kind: store.Kind("Cluster"), Plural: "clusters"}}, Bus: w.bus("clm"),
	})
	must(t, 0, err)
	w.run(s.Run)
	w.clm, err = clmclient.New(clmclient.Options{Endpoint: "http://" + plain.Addr().String()})
	must(t, 0, err)
	t.Cleanup(w.clm.Close)
	return w
}

func must[T any](t testing.TB, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (w *world) certificate(service string) tls.Certificate {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(w, 0, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(w, 0, err)
	cert, err := w.ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}),
		pki.ServiceName(service))
	must(w, 0, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(w, 0, err)
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return must(w, pair, err)
}

func (w *world) bus(service string) bus.ClientOptions {
	return bus.ClientOptions{Addr: w.broker, MaxBackoff: 200 * time.Millisecond,
		TLS: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{w.certificate(service)},
			RootCAs: w.ca.Pool(), ServerName: "broker"}}
}

// run runs a part until the function that it returns, or the test's end.
func (w *world) run(part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := part(ctx); err != nil && ctx.Err() == nil {
			w.Errorf("a part ended: %v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	w.Cleanup(stop)
	return stop
}

// leases are a replica's, by CLM; cut has it hear and say nothing any more.
type leases struct {
	clm  *clmclient.Client
	name string
	cut  context.Context
	away *atomic.Bool // all replicas': the lifecycle manager does not answer
}

var errCut = errors.New("the wire is cut")

func (l *leases) Renew(ctx context.Context, lease time.Duration, keep []int) (int, []adapter.OpenSlot, error) {
	if l.cut.Err() != nil || l.away.Load() {
		return 0, nil, errCut
	}
	got, err := l.clm.RenewMember(ctx, "dns", l.name, apiclm.AdapterMemberRenewal{LeaseMs: lease.Milliseconds(),
		Keep: keep})
	var open []adapter.OpenSlot
	for i, slot := range got.Open {
		open = append(open, adapter.OpenSlot{Slot: slot, Since: got.Since[i]})
	}
	return got.Slots, open, err
}

func (l *leases) Leave(ctx context.Context) error {
	if l.cut.Err() != nil {
		return errCut
	}
	return l.clm.RemoveMember(ctx, "dns", l.name)
}

// replica is one replica. cut ends its leases, as when it is killed.
type replica struct {
	world *world
	name  string
	stop  func()
	cut   func()
}

func (w *world) start(name string) *replica {
	cutting, cut := context.WithCancel(context.Background())
	r := &replica{world: w, name: name, cut: cut}
	worker := adapter.NewWorker(adapter.WorkerOptions{
		Name: "dns", Topic: "clusters", Engine: r, Bus: w.bus("adapter"), Sharer: &leases{w.clm, name, cutting,
			&w.away}, Lease: lease, Parallel: 8, Grace: time.Second,
	})
	r.stop = w.run(worker.Run)
	w.Cleanup(cut)
	return r
}

// Run is the adapter's task: it takes a while, and reports.
func (r *replica) Run(ctx context.Context, e adapter.Event) *adapter.Result {
	w := r.world
	w.mu.Lock()
	if other := w.working[e.ID]; other.ctx != nil && other.ctx.Err() == nil {
		w.Errorf("%s and %s work on %s at once", other.replica, r.name, e.ID)
	}
	w.working[e.ID] = work{r.name, ctx}
	w.runs[r.name]++
	w.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Millisecond):
	}
	w.mu.Lock()
	if w.working[e.ID].replica == r.name {
		delete(w.working, e.ID)
	}
	w.mu.Unlock()
	have, err := w.clm.Get(ctx, clusters, e.ID, "")
	if err == nil {
		var conditions []apiclm.ReportedCondition
		for _, kind := range []string{"Available", "Applied", "Health"} {
			conditions = append(conditions, apiclm.ReportedCondition{Type: kind, Status: "True"})
		}
		_, err = w.clm.Report(ctx, clusters, e.ID, apiclm.AdapterStatusCreate{Adapter: "dns",
			ObservedGeneration: have.Generation, ObservedTime: time.Now(), Conditions: conditions})
	}
	if err != nil {
		return &adapter.Result{Errors: map[adapter.Phase]error{adapter.PostActions: err}}
	}
	return &adapter.Result{Status: adapter.Success}
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	limit := time.After(60 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-limit:
			w.Fatalf("in vain: %s: %v", what, err)
		case <-tick.C:
		}
	}
}

// reconciled waits until all clusters are, and each of the replicas has run
// something since the last time. It returns how often each has.
func (w *world) reconciled(replicas ...string) (runs map[string]int) {
	w.Helper()
	w.eventually(fmt.Sprint("all is reconciled by ", replicas), func() error {
		page, err := w.clm.List(w.Context(), clusters, clmclient.ResourceQuery{Size: 1,
			Search: "status.conditions.Reconciled='False'"})
		if err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range replicas {
			if w.runs[name] == 0 {
				return fmt.Errorf("%s has done nothing; %d are not reconciled", name, page.Total)
			}
		}
		if page.Total > 0 {
			return fmt.Errorf("%d are not", page.Total)
		}
		runs = maps.Clone(w.runs)
		clear(w.runs)
		return nil
	})
	return runs
}

func TestNoResourceIsTwoReplicas(t *testing.T) {
	w := newWorld(t)
	one := w.start("one")
	var ids []string
	for i := range 12 {
		r, err := w.clm.Create(t.Context(), clusters, apiclm.ResourceCreate{Kind: "Cluster", Name: fmt.Sprint("c", i),
			Spec: json.RawMessage(`{}`)}, "")
		ids = append(ids, must(t, r, err).ID)
	}
	change := func() {
		t.Helper()
		for _, id := range ids {
			_, err := w.clm.Merge(t.Context(), clusters, id, json.RawMessage(fmt.Sprintf(`{"labels":{"at":"%d"}}`,
				time.Now().UnixNano())), "")
			must(t, 0, err)
		}
	}
	w.reconciled("one")
	two := w.start("two") // while there is work
	w.eventually("the second has its share", func() error {
		change()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.runs["two"] == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	w.reconciled("two")

	one.cut() // its leases; it lives, and hears events
	change()
	w.reconciled("two")
	w.eventually("all is the second's", func() error {
		change()
		if runs := w.reconciled("two"); runs["one"] > 0 || runs["two"] < len(ids) {
			return fmt.Errorf("runs %v", runs)
		}
		return nil
	})

	w.start("three")
	change()
	two.stop() // in good order, amid work
	change()
	w.reconciled("three")
}

// When the lifecycle manager answers no renewals for longer than a lease, all
// replicas come back to the slots that they had, and run what has changed.
func TestAPauseChangesNoOwners(t *testing.T) {
	w := newWorld(t)
	w.start("one")
	w.start("two")
	const fleet = 40
	ids := make([]string, fleet)
	for i := range ids {
		r, err := w.clm.Create(t.Context(), clusters, apiclm.ResourceCreate{Kind: "Cluster", Name: fmt.Sprint("c", i),
			Spec: json.RawMessage(`{}`)}, "")
		ids[i] = must(t, r, err).ID
	}
	change := func(id string) {
		t.Helper()
		_, err := w.clm.Merge(t.Context(), clusters, id, json.RawMessage(fmt.Sprintf(`{"labels":{"at":"%d"}}`,
			time.Now().UnixNano())), "")
		must(t, 0, err)
	}
	w.eventually("both have their share", func() error {
		for _, id := range ids {
			change(id)
		}
		if runs := w.reconciled(); runs["one"] == 0 || runs["two"] == 0 {
			return fmt.Errorf("runs %v", runs)
		}
		return nil
	})
	members := func() (list []apiclm.AdapterMember) {
		for _, name := range []string{"one", "two"} {
			m, err := w.clm.RenewMember(t.Context(), "dns", name, apiclm.AdapterMemberRenewal{
				LeaseMs: lease.Milliseconds(), Keep: every()})
			list = append(list, must(t, m, err))
		}
		return list
	}
	before := members()
	w.away.Store(true)
	<-time.After(2 * lease)
	w.mu.Lock()
	clear(w.runs)
	w.mu.Unlock()
	change(ids[0])
	w.away.Store(false)
	w.reconciled()
	<-time.After(2 * lease)
	if diff := cmp.Diff(before, members()); diff != "" {
		t.Errorf("slots changed hands: %s", diff)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if runs := w.runs["one"] + w.runs["two"]; runs > 3 {
		t.Errorf("%d runs, of one change", runs)
	}
}

// every slot is kept, so that asking lets none go.
func every() (slots []int) {
	for slot := range 32 {
		slots = append(slots, slot)
	}
	return slots
}
