package replicas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/adapter"
	apiclm "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/internal/leakcheck"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

const (
	entities = `entities: [{kind: Cluster, plural: clusters, required_adapters: [dns]}]`
	clusters = clmclient.Collection("clusters")
	lease    = 4 * time.Second // the default of adapters
)

// taskRun is one run of the adapter's task, until its context ends.
type taskRun struct {
	replica string
	ctx     context.Context
}

// world is a lifecycle manager with its sentinel, and a broker.
type world struct {
	*testing.T
	broker *testsite.Broker
	clm    *clmclient.Client

	mu      sync.Mutex
	working map[string]taskRun // by resource
	runs    map[string]int     // by replica
	away    atomic.Bool        // the lifecycle manager answers no renewals
	late    atomic.Bool        // a replica renewed its lease after its end: this machine was too slow for the test
}

func newWorld(t *testing.T) *world {
	region := testworld.Start(t, testworld.Options{Entities: entities})
	return &world{T: t, broker: region.Broker, clm: region.CLM.Dial(), working: map[string]taskRun{},
		runs: map[string]int{}}
}

// leases renews the leases of one replica with the lifecycle manager.
type leases struct {
	clm       *clmclient.Client
	name      string
	connected context.Context // until it ends, the lifecycle manager can be reached
	world     *world
	last      time.Time // of the beginning of the last renewal
}

var errCut = errors.New("the lifecycle manager cannot be reached")

func (l *leases) Renew(ctx context.Context, lease time.Duration, keep []int) (int, []adapter.OpenSlot, error) {
	begun, before := time.Now(), l.last
	l.last = begun
	if l.connected.Err() != nil || l.world.away.Load() {
		return 0, nil, errCut
	}
	got, err := l.clm.RenewMember(ctx, "dns", l.name, apiclm.AdapterMemberRenewal{LeaseMs: lease.Milliseconds(),
		Keep: keep})
	if !before.IsZero() && time.Since(before) > lease {
		l.world.late.Store(true)
	}
	var open []adapter.OpenSlot
	for i, slot := range got.Open {
		open = append(open, adapter.OpenSlot{Slot: slot, Since: got.Since[i]})
	}
	return got.Slots, open, err
}

func (l *leases) Leave(ctx context.Context) error {
	if l.connected.Err() != nil {
		return errCut
	}
	return l.clm.RemoveMember(ctx, "dns", l.name)
}

// replica is one replica. cut keeps it from renewing its leases, as if it was killed.
type replica struct {
	world *world
	name  string
	stop  func()
	cut   func()
}

func (w *world) start(name string) *replica {
	connected, cut := context.WithCancel(context.Background())
	w.Cleanup(cut)
	r := &replica{world: w, name: name, cut: cut}
	worker := adapter.NewWorker(adapter.WorkerOptions{
		Name: "dns", Topic: "clusters", Engine: r, Bus: w.broker.ClientOptions(pki.ServiceName("adapter")),
		Sharer: &leases{clm: w.clm, name: name, connected: connected, world: w}, Lease: lease, Parallel: 8, Grace: time.Second,
	})
	r.stop = testsite.Run(w, "replica "+name, worker.Run)
	return r
}

// Run implements adapter.Runner: the task takes 30 ms and reports. It fails the test if another replica works on the
// same resource.
func (r *replica) Run(ctx context.Context, e adapter.Event) *adapter.Result {
	w := r.world
	w.mu.Lock()
	if other := w.working[e.ID]; other.ctx != nil && other.ctx.Err() == nil {
		w.Errorf("%s and %s work on %s at once", other.replica, r.name, e.ID)
	}
	w.working[e.ID] = taskRun{r.name, ctx}
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
	testsite.Eventually(w, what, check)
}

// create creates n clusters and returns their ids.
func (w *world) create(n int) (ids []string) {
	w.Helper()
	for i := range n {
		r, err := w.clm.Create(w.Context(), clusters, apiclm.ResourceCreate{Kind: "Cluster", Name: fmt.Sprint("c", i),
			Spec: json.RawMessage(`{}`)}, "")
		if err != nil {
			w.Fatal(err)
		}
		ids = append(ids, r.ID)
	}
	return ids
}

// change gives each of the clusters a new generation.
func (w *world) change(ids ...string) {
	w.Helper()
	for _, id := range ids {
		patch := fmt.Appendf(nil, `{"labels":{"at":"%d"}}`, time.Now().UnixNano())
		if _, err := w.clm.Merge(w.Context(), clusters, id, patch, ""); err != nil {
			w.Fatal(err)
		}
	}
}

// awaitReconciled waits until all clusters are reconciled and each of the named replicas has run a task since the
// last call. It returns how many tasks each replica has run since then.
func (w *world) awaitReconciled(replicas ...string) (runs map[string]int) {
	w.Helper()
	w.eventually(fmt.Sprint("all clusters are reconciled by ", replicas), func() error {
		page, err := w.clm.List(w.Context(), clusters, clmclient.ResourceQuery{Size: 1,
			Search: "status.conditions.Reconciled='False'"})
		if err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range replicas {
			if w.runs[name] == 0 {
				return fmt.Errorf("%s has run nothing; %d clusters are not reconciled", name, page.Total)
			}
		}
		if page.Total > 0 {
			return fmt.Errorf("%d clusters are not reconciled", page.Total)
		}
		runs = maps.Clone(w.runs)
		clear(w.runs)
		return nil
	})
	return runs
}

func TestNoResourceRunsInTwoReplicas(t *testing.T) {
	w := newWorld(t)
	one := w.start("one")
	ids := w.create(12)
	change := func() { t.Helper(); w.change(ids...) }
	w.awaitReconciled("one")
	two := w.start("two") // while there is work
	w.eventually("the second replica has a share", func() error {
		change()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.runs["two"] == 0 {
			return errors.New("the second replica has run nothing")
		}
		return nil
	})
	w.awaitReconciled("two")

	one.cut() // it still runs and receives events
	change()
	w.awaitReconciled("two")
	w.eventually("the second replica has all clusters", func() error {
		change()
		if runs := w.awaitReconciled("two"); runs["one"] > 0 || runs["two"] < len(ids) {
			return fmt.Errorf("runs %v", runs)
		}
		return nil
	})

	w.start("three")
	change()
	two.stop() // an orderly end, while there is work
	change()
	w.awaitReconciled("three")
}

// When the lifecycle manager answers no renewal for longer than a lease, each replica gets its
// former slots, and runs only for changed resources.
func TestAPauseChangesNoOwners(t *testing.T) {
	w := newWorld(t)
	w.start("one")
	w.start("two")
	ids := w.create(40)
	w.eventually("both replicas have a share", func() error {
		w.change(ids...)
		if runs := w.awaitReconciled(); runs["one"] == 0 || runs["two"] == 0 {
			return fmt.Errorf("runs %v", runs)
		}
		return nil
	})
	members := func() (list []apiclm.AdapterMember) {
		for _, name := range []string{"one", "two"} {
			m, err := w.clm.RenewMember(t.Context(), "dns", name, apiclm.AdapterMemberRenewal{
				LeaseMs: lease.Milliseconds(), Keep: allSlots()})
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, m)
		}
		return list
	}
	for tries := 10; ; tries-- {
		before := members()
		w.late.Store(false)
		w.away.Store(true)
		<-time.After(2 * lease)
		w.mu.Lock()
		clear(w.runs)
		w.mu.Unlock()
		w.change(ids[0])
		w.away.Store(false)
		w.awaitReconciled()
		<-time.After(2 * lease)
		diff := cmp.Diff(before, members())
		w.mu.Lock()
		n := w.runs["one"] + w.runs["two"]
		w.mu.Unlock()
		if diff == "" && n <= 3 {
			return
		}
		if !w.late.Load() || tries == 0 {
			t.Fatalf("%d runs after one change; slots changed hands: %s", n, diff)
		}
		t.Logf("a replica renewed its lease too late on this machine; %d runs, %s; the pause is repeated", n, diff)
	}
}

// allSlots returns all slots: a renewal that keeps them all releases none.
func allSlots() (slots []int) {
	for slot := range 32 {
		slots = append(slots, slot)
	}
	return slots
}
