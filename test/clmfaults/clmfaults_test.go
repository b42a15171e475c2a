package clmfaults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/clm"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

const (
	writers   = 4
	perWriter = 8 // resources at a time

	lightTime = 20 * time.Second
)

// TestI1I2I3I4I5I9I12TheLifecycleManagerKeepsItsInvariantsUnderFaults kills API servers, sentinels,
// adapters, the broker and PostgreSQL while writers create, patch and delete resources. A checker
// follows the feed all the time. After the last fault, every resource must become what its writer
// requested: reconciled at its last generation, or deleted.
//
// The faults go on for 20 s, or for ATOLL_SOAK. ATOLL_SEED repeats a run's choices.
func TestI1I2I3I4I5I9I12TheLifecycleManagerKeepsItsInvariantsUnderFaults(t *testing.T) {
	seed, span := testsite.Seed(t), testsite.Soak(t, lightTime)
	w := newWorld(t, seed)
	w.runFaults(span)
	begun := time.Now()
	w.settle()
	if err := w.check.awaitSameVersions(t.Context(), w.db.Store); err != nil {
		t.Errorf("I4: %v", err)
	}
	w.awaitWatcher()
	t.Logf(
		"%d requests acknowledged, %d documents in the feed; all as requested after %v; faults: %v",
		w.acks,
		w.check.seen,
		time.Since(begun).Round(time.Millisecond),
		w.counts,
	)
}

// world is the lifecycle manager with its processes, and the expected state of the writers and the
// watcher.
type world struct {
	t        *testing.T
	random   *rand.Rand
	postgres *pgtest.PrivateServer
	db       *clm.Database // the checker's
	check    *checker

	processes map[string]*testsite.Process
	next      []string // the processes to kill next
	clients   []*clmclient.Client

	mu           sync.Mutex
	deleting     map[string]bool // names of clusters and node pools whose deletion was requested
	acknowledged map[string]*resource
	watched      map[string]int64 // generations that the watcher of the API has, by id
	acks         int
	counts       map[string]int
}

// resource is what one writer requested.
type resource struct {
	in     clmclient.Collection
	kind   string
	id     string
	name   string
	key    string
	value  string // of its spec
	parent *resource

	generation int32 // the last acknowledged one
	deleted    bool
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), postgres: pgtest.StartServer(t),
		processes: map[string]*testsite.Process{},
		deleting:  map[string]bool{}, acknowledged: map[string]*resource{},
		watched: map[string]int64{}, counts: map[string]int{},
	}
	dsn := pgtest.NewDatabase(t, w.postgres.Cluster)
	registry, err := clm.ParseRegistry([]byte(entities))
	if err != nil {
		t.Fatal(err)
	}
	if w.db, err = clm.Open(t.Context(), clm.DatabaseOptions{DSN: dsn, Registry: registry,
		Adapt: store.Options.Patient}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	w.check = newChecker(t, w.deletionRequested)
	ctx, stop := context.WithCancel(context.Background())
	var background sync.WaitGroup
	t.Cleanup(func() { stop(); background.Wait() })
	background.Go(func() {
		if err := w.db.Store.Follow(ctx, store.FollowOptions{Name: "checker"}, w.check.apply); ctx.Err() == nil {
			t.Errorf("the checker's follower ended: %v", err)
		}
	})

	s := testsite.New(t)
	broker, http := testsite.FreeAddress(t), []string{testsite.FreeAddress(t), testsite.FreeAddress(t)}
	start := func(identity, name string, c childConfig) {
		c.Name, c.Broker, c.DSN = name, broker, dsn
		w.processes[name] = s.Process(name, pki.ServiceName(identity), c)
		w.processes[name].Start()
	}
	start("broker", "broker", childConfig{Kind: "broker"})
	for n := range http {
		start("clm", fmt.Sprintf("clm-%d", n), childConfig{Kind: "clm", HTTP: http[n]})
		start("clm", fmt.Sprintf("sentinel-%d", n), childConfig{Kind: "sentinel"})
		c, err := clmclient.New(clmclient.Options{Endpoint: "http://" + http[n], Timeout: 4 * time.Second,
			Budget: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		w.clients = append(w.clients, c)
	}
	start("adapter", "adapters-0", childConfig{Kind: "adapter", HTTP: http[0], Adapters: []string{
		"cl-namespace=cl-namespace", "np-configmap=np-configmap"}})
	start("adapter", "adapters-1", childConfig{Kind: "adapter", HTTP: http[1], Adapters: []string{
		"cl-second=cl-namespace"}})
	background.Go(func() { w.watch(ctx) })
	return w
}

// watch follows all resources through the first API server, over its restarts, and records their generations.
func (w *world) watch(ctx context.Context) {
	listing := map[string]int64(nil)
	err := w.clients[0].Follow(ctx, clmclient.AllKinds, remote.WatchOptions{}, func(e remote.Event) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case e.Type == remote.Relist:
			listing = map[string]int64{}
			return nil
		case e.Type == rest.Bookmark:
			if listing != nil && e.Cursor != "" {
				w.watched, listing = listing, nil
			}
			return nil
		}
		r, err := clmclient.ResourceOf(e.Object)
		if err != nil {
			return err
		}
		into := w.watched
		if listing != nil {
			into = listing
		}
		if e.Type == rest.Deleted {
			delete(into, r.ID)
			return nil
		}
		if into[r.ID] > int64(r.Generation) {
			w.t.Errorf("I1: a watcher saw %s go back from generation %d to %d", r.Name, into[r.ID], r.Generation)
		}
		into[r.ID] = int64(r.Generation)
		return nil
	})
	if ctx.Err() == nil {
		w.t.Errorf("I4: the watch ended: %v", err)
	}
}

// awaitWatcher waits until the watcher has the same resources and generations as a list (I4).
func (w *world) awaitWatcher() {
	w.t.Helper()
	var last string
	w.until("I4: the watcher has every resource that a list has", func() bool {
		list := map[string]int64{}
		for r, err := range w.clients[1].All(w.t.Context(), clmclient.AllKinds, clmclient.ResourceQuery{}) {
			if err != nil {
				return false
			}
			list[r.ID] = int64(r.Generation)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		last = fmt.Sprintf("the watcher has %v, the list has %v", w.watched, list)
		return maps.Equal(w.watched, list)
	}, &last)
}

func (w *world) until(what string, met func() bool, why *string) {
	w.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testsite.HangLimit); !met(); <-tick.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %s: %s", what, testsite.HangLimit, *why)
		}
	}
}

func (w *world) deletionRequested(_, name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deleting[name]
}

// retry calls f with one server after the other until one answers.
func (w *world) retry(what string, f func(context.Context, *clmclient.Client) (clmclient.Resource, error)) (
	clmclient.Resource,
	*remote.Error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(testsite.HangLimit)
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(w.t.Context(), 8*time.Second)
		r, err := f(ctx, w.clients[try%len(w.clients)])
		cancel()
		var refused *remote.Error
		switch {
		case err == nil:
			w.mu.Lock()
			w.acks++
			w.mu.Unlock()
			return r, nil
		case errors.As(err, &refused) && refused.Status >= 400 && refused.Status < 500:
			return r, refused
		case time.Now().After(deadline):
			w.t.Errorf("%s: not within %s: %v", what, testsite.HangLimit, err)
			return r, &remote.Error{Status: 599}
		}
		<-tick.C
	}
}

// runFaults lets the writers write and kills processes for the span.
func (w *world) runFaults(span time.Duration) {
	end := time.Now().Add(span)
	var group sync.WaitGroup
	for n := range writers {
		random := rand.New(rand.NewPCG(w.random.Uint64(), uint64(n)))
		group.Go(func() { (&writer{w: w, n: n, random: random}).run(end) })
	}
	pause := time.NewTimer(0)
	for time.Now().Before(end) && !w.t.Failed() {
		pause.Reset(time.Duration(200+w.random.IntN(1200)) * time.Millisecond)
		<-pause.C
		w.causeFault()
	}
	group.Wait()
}

// causeFault kills a process and starts it again after up to half a second.
func (w *world) causeFault() {
	if len(w.next) == 0 { // each process once, in random order; then the next round
		w.next = []string{"broker", "clm-0", "clm-1", "sentinel-0", "sentinel-1", "adapters-0", "adapters-1",
			"postgres"}
		w.random.Shuffle(len(w.next), func(i, j int) { w.next[i], w.next[j] = w.next[j], w.next[i] })
	}
	name := w.next[0]
	w.next = w.next[1:]
	w.counts[strings.TrimRight(name, "-01")]++
	away := time.NewTimer(time.Duration(w.random.IntN(500)) * time.Millisecond)
	if name == "postgres" {
		w.postgres.Kill()
		<-away.C
		w.postgres.Start()
		return
	}
	w.processes[name].Kill()
	<-away.C
	w.processes[name].Start()
}

// settle waits until every resource is as the writers requested: reconciled at its last generation, or deleted.
func (w *world) settle() {
	w.t.Helper()
	why := ""
	w.until("every resource is as requested", func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), 8*time.Second)
		defer cancel()
		found := map[string]clmclient.Resource{}
		for r, err := range w.clients[0].All(ctx, clmclient.AllKinds, clmclient.ResourceQuery{}) {
			if err != nil {
				why = err.Error()
				return false
			}
			found[r.ID] = r
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for id, want := range w.acknowledged {
			r, there := found[id]
			delete(found, id)
			switch gone := want.deleted || want.parent != nil && want.parent.deleted; {
			case gone && there:
				why = fmt.Sprintf("%s %s is not deleted yet: %s", want.kind, want.name, r.JSON)
				return false
			case gone:
				continue
			case !there:
				w.t.Fatalf("I1: %s %s was acknowledged and does not exist", want.kind, want.name)
			}
			var spec struct{ Value string }
			if err := json.Unmarshal(r.Spec, &spec); err != nil || spec.Value != want.value {
				w.t.Fatalf("I2: %s has the spec %s; the last acknowledged value is %q", want.name, r.Spec, want.value)
			}
			if r.Generation != want.generation {
				w.t.Fatalf("I3: %s has generation %d; %d was acknowledged", want.name, r.Generation, want.generation)
			}
			if want.kind != "Note" && (len(r.Status.Conditions) == 0 || r.Status.Conditions[0].Status != "True") {
				why = fmt.Sprintf("%s is not reconciled: %s", want.name, r.JSON)
				return false
			}
		}
		for _, r := range found {
			w.t.Fatalf("I5: no writer created %s", r.JSON)
		}
		return true
	}, &why)
}

func body(kind, name, value string) api.ResourceCreate {
	return api.ResourceCreate{Kind: kind, Name: name, Spec: json.RawMessage(fmt.Sprintf(`{"value":%q}`, value))}
}
