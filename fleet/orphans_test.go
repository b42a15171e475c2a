package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/api/work"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
)

// works are management clusters' works as Maestro has them. One whose deletion
// is ordered goes when its agent confirms.
type works struct {
	mu    sync.Mutex
	all   map[work.ID]Work
	ended []string // "WORK REASON"
	fails error
}

func (w *works) put(held Work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[work.ID]Work{}
	}
	w.all[held.ID] = held
}

// confirm has the agents confirm all deletions that are ordered.
func (w *works) confirm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, work := range w.all {
		if work.Deleting != nil {
			delete(w.all, id)
		}
	}
}

func (w *works) found(which func(Work) bool) (found []Work, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, work := range w.all {
		if which(work) {
			found = append(found, work)
		}
	}
	return found, w.fails
}

func (w *works) Each(_ context.Context, owner cluster.ID, mc cluster.ManagementCluster, f func([]Work) error) error {
	found, err := w.found(func(x Work) bool {
		return x.Known && (owner == "" || x.Cluster == owner) && (mc == "" || x.ManagementCluster == mc)
	})
	if err != nil {
		return err
	}
	return f(found)
}

func (w *works) Unknown(_ context.Context, mc cluster.ManagementCluster) ([]Work, error) {
	return w.found(func(x Work) bool {
		return !x.Known && (mc == "" || x.ManagementCluster == mc)
	})
}

func (w *works) Get(_ context.Context, mc cluster.ManagementCluster, id work.ID) (Work, bool, error) {
	found, err := w.found(func(x Work) bool {
		return x.ID == id && (mc == "" || x.ManagementCluster == mc)
	})
	if err != nil || len(found) == 0 {
		return Work{}, false, err
	}
	return found[0], true, nil
}

func (w *works) End(_ context.Context, ended Work, reason string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = append(w.ended, string(ended.ID)+" "+reason)
	now := time.Now()
	ended.Deleting = &now
	w.all[ended.ID] = ended
	return nil
}

func plane(id work.ID, owner string) Work {
	return Work{ID: id, ManagementCluster: "one", Name: "work-" + owner, Cluster: cluster.ID(owner), Known: true,
		Since: time.Now(), Objects: []string{"Namespace clusters-" + owner, "HostedCluster clusters-" + owner +
			"/hc"}}
}

// startWith starts a fleet over a stand-in of Maestro, with short times.
func startWith(t *testing.T, w *works, o Options) *bed {
	o.Works, o.OrphansEvery, o.ConfirmAfter = w, 10*time.Millisecond, 100*time.Millisecond
	return startOn(t, pgtest.DSN(t), o)
}

// force removes a cluster by force.
func (b *bed) force(id string) {
	b.t.Helper()
	if _, err := b.Delete(b.t.Context(), clustersOf, id, ""); err != nil {
		b.t.Fatal(err)
	}
	if err := b.ForceDelete(b.t.Context(), clustersOf, id, "a test"); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) orphans() []api.Orphan {
	b.t.Helper()
	list, err := b.Orphans(b.t.Context(), "")
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// The room of a cluster that was removed by force is free when its management
// cluster has nothing of it any more, and not before; what runs there is listed
// and ended, and the record says by whom.
func TestI9RoomIsFreeWhenTheManagementClusterSaysSo(t *testing.T) {
	w := &works{}
	b := startWith(t, w, Options{})
	ctx := t.Context()
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	kept := plane("w-kept", b.cluster("kept", `{"placement":{"selector":{"a":"b"}}}`))
	w.put(kept)
	id := b.cluster("forced", `{}`)
	b.place(id)
	w.put(plane("w-1", id))
	b.force(id)

	b.eventually("it is noticed", func() bool { return len(b.orphans()) == 1 && b.placementState(id) == api.Orphaned })
	o := b.orphans()[0]
	is(t, "what runs there", fmt.Sprintln(o.ID, o.Kind, o.ManagementCluster, o.ClusterID == id,
		o.What[1] == "HostedCluster clusters-"+id+"/hc", o.Size["planes"], o.RemovedBy, o.EndingSince == nil),
		"w-1 Work one true true 1 system:test true\n")
	waits := b.cluster("waits", `{}`)
	if p := b.place(waits); p.State != api.Waiting {
		t.Fatalf("the room of what still runs is given to another: %+v", p)
	}
	fails(t, "giving its room back without a word", b.Release(ctx, cluster.ID(id)), 409, codeState)
	fails(t, "ending what has an owner", b.EndOrphan(ctx, "one", "w-kept", "no"), 409, codeState)
	fails(t, "ending what is not there", b.EndOrphan(ctx, "one", "nothing", "no"), 404, codeNotFound)
	fails(t, "ending without a reason", b.EndOrphan(ctx, "one", "w-1", ""), 400, codeInvalid)
	tenant := b.as("mine")
	_, err := tenant.Orphans(ctx, "")
	fails(t, "a tenant that asks what runs", err, 403, codeForbidden)
	fails(t, "a tenant that ends what runs", tenant.EndOrphan(ctx, "one", "w-1", "x"), 403, codeForbidden)

	if err := b.EndOrphan(ctx, "one", "w-1", "nobody needs it"); err != nil {
		t.Fatal(err)
	}
	if o := b.orphans(); len(o) != 1 || o[0].EndingSince == nil {
		t.Fatalf("while it is being deleted: %+v", o)
	}
	is(t, "the room meanwhile", b.usage(one, "planes"), "0 free, 1 reserved by 1")
	w.confirm()
	b.eventually("the room is free", func() bool { return b.usage(one, "planes") == "1 free, 0 reserved by 0" })
	is(t, "orphans at the end", len(b.orphans()), 0)
	b.eventually("who waits takes it", func() bool { return b.placeAgain(waits) == api.Placed })
	var record []string
	h, err := b.History(ctx, clustersOf, id, 0, 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range h {
		if r.Note != nil {
			var note struct{ Reason string }
			if err := json.Unmarshal(r.Note, &note); err != nil {
				t.Fatal(err)
			}
			record = append(record, r.Action+" by "+r.Principal+": "+note.Reason)
		}
	}
	want := []string{"free-room by system:fleet: nothing of it is left on one",
		"end-orphan by system:test: nobody needs it", "force-delete by system:test: a test"}
	if !slices.Equal(record, want) {
		t.Errorf("the record is %q, want %q", record, want)
	}
}

func (b *bed) placementState(id string) api.PlacementState {
	b.t.Helper()
	d, err := b.fleet.store.Get(b.t.Context(), KindPlacement, placementID(cluster.ID(id)))
	if err != nil {
		return ""
	}
	p, err := placementOf(d)
	if err != nil {
		b.t.Fatal(err)
	}
	return p.State
}

func (b *bed) placeAgain(cluster string) api.PlacementState { return b.place(cluster).State }

// A management cluster that is not heard says nothing, a work that only its
// agent knows runs all the same, and a Maestro that does not answer frees
// nothing.
func TestI9SilenceFreesNothing(t *testing.T) {
	w := &works{}
	b := startWith(t, w, Options{})
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	id := b.cluster("forced", `{}`)
	b.place(id)
	w.mu.Lock()
	w.fails = fmt.Errorf("Maestro does not answer")
	w.mu.Unlock()
	b.force(id)
	b.eventually("it is noticed", func() bool { return b.placementState(id) == api.Orphaned })
	held := func(what string) {
		t.Helper()
		looks := b.looks()
		b.eventually("it is looked at for longer than it takes to free it", func() bool { return b.looks() > looks+30 })
		is(t, what, b.usage(one, "planes"), "0 free, 1 reserved by 1")
	}
	held("without an answer")
	b.heard(one, false)
	w.mu.Lock()
	w.fails = nil
	w.mu.Unlock()
	held("without its agent")
	unknown := Work{ID: work.BundleID("hosted-cluster", "one", "work-"+id), ManagementCluster: "one",
		Since: time.Now()}
	w.put(unknown)
	b.heard(one, true)
	held("with a work that only its agent knows")
	if o := b.orphans(); len(o) != 2 || !slices.ContainsFunc(o, func(o api.Orphan) bool {
		return o.Kind == api.UnknownWork
	}) {
		t.Errorf("it is listed as %+v", o)
	}
	w.mu.Lock()
	delete(w.all, unknown.ID)
	w.mu.Unlock()
	b.eventually("the room is free", func() bool { return b.usage(one, "planes") == "1 free, 0 reserved by 0" })
}

// looks is how often what was left behind was looked at.
func (b *bed) looks() int64 { return b.fleet.looks.Load() }

// Where the operator wants it, what a forced deletion left behind is ended after
// a while; what CLM has no record of never is: the database may have been put
// back.
func TestOrphansAreEndedAfterAGrace(t *testing.T) {
	w := &works{}
	b := startWith(t, w, Options{EndOrphansAfter: time.Second})
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	w.put(plane("w-unrecorded", "0199a0b1-0000-7000-8000-000000000001"))
	id := b.cluster("forced", `{}`)
	b.place(id)
	w.put(plane("w-1", id))
	b.force(id)
	b.eventually("it is ended", func() bool { w.confirm(); return b.usage(one, "planes") == "1 free, 0 reserved by 0" })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ended) != 1 || !strings.HasPrefix(w.ended[0], "w-1 its cluster is gone for more than 1s") {
		t.Errorf("ended: %q", w.ended)
	}
}

// A cluster that goes in good order, or before it was placed, leaves nothing.
func TestI9NothingStaysReservedForWhatIsGone(t *testing.T) {
	b := startWith(t, &works{}, Options{})
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	id := b.cluster("lives", `{}`)
	b.place(id)
	waits := b.cluster("waits", `{}`)
	is(t, "the other", b.place(waits).State, api.Waiting)
	b.force(waits)
	b.eventually("a placement that waits goes with its cluster", func() bool { return b.placementState(waits) == "" })
	if _, err := b.Delete(t.Context(), clustersOf, id, ""); err != nil {
		t.Fatal(err)
	}
	b.report(id, 2, "True")
	b.eventually("of one that ended without a release",
		func() bool { return b.usage(one, "planes") == "1 free, 0 reserved by 0" })
}
