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

// fakeWorks has the works of management clusters, as Maestro does. A work whose deletion was ordered stays until
// the test calls confirmDeletions.
type fakeWorks struct {
	mu    sync.Mutex
	all   map[work.ID]Work
	ended []string // "WORK REASON"
	fails error
}

func (w *fakeWorks) put(held Work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[work.ID]Work{}
	}
	w.all[held.ID] = held
}

// confirmDeletions removes the works whose deletion was ordered, as agents do.
func (w *fakeWorks) confirmDeletions() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, work := range w.all {
		if work.Deleting != nil {
			delete(w.all, id)
		}
	}
}

func (w *fakeWorks) found(which func(Work) bool) (found []Work, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, work := range w.all {
		if which(work) {
			found = append(found, work)
		}
	}
	return found, w.fails
}

func (w *fakeWorks) Each(
	_ context.Context,
	owner cluster.ID,
	mc cluster.ManagementCluster,
	f func([]Work) error,
) error {
	found, err := w.found(func(x Work) bool {
		return x.Known && (owner == "" || x.Cluster == owner) && (mc == "" || x.ManagementCluster == mc)
	})
	if err != nil {
		return err
	}
	return f(found)
}

func (w *fakeWorks) Unknown(_ context.Context, mc cluster.ManagementCluster) ([]Work, error) {
	return w.found(func(x Work) bool {
		return !x.Known && (mc == "" || x.ManagementCluster == mc)
	})
}

func (w *fakeWorks) Get(_ context.Context, mc cluster.ManagementCluster, id work.ID) (Work, bool, error) {
	found, err := w.found(func(x Work) bool {
		return x.ID == id && (mc == "" || x.ManagementCluster == mc)
	})
	if err != nil || len(found) == 0 {
		return Work{}, false, err
	}
	return found[0], true, nil
}

func (w *fakeWorks) End(_ context.Context, ended Work, reason string) error {
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

// startWithWorks starts a fleet with fake works and short times.
func startWithWorks(t *testing.T, w *fakeWorks, o Options) *testRegion {
	o.Works, o.OrphansEvery, o.ConfirmAfter = w, 10*time.Millisecond, 100*time.Millisecond
	return startOn(t, pgtest.DSN(t), o)
}

// forceDelete deletes a cluster and then force-deletes it.
func (b *testRegion) forceDelete(id string) {
	b.t.Helper()
	if _, err := b.Delete(b.t.Context(), clustersPlural, id, ""); err != nil {
		b.t.Fatal(err)
	}
	if err := b.ForceDelete(b.t.Context(), clustersPlural, id, "a test"); err != nil {
		b.t.Fatal(err)
	}
}

func (b *testRegion) orphans() []api.Orphan {
	b.t.Helper()
	list, err := b.Orphans(b.t.Context(), "")
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// After a forced deletion fleet keeps the cluster's reservation until its management cluster has no work of the
// cluster any more. An operator lists and deletes the works, and the history records the operator and the reason.
func TestI9AForcedDeletionKeepsItsRoomUntilItsWorksAreGone(t *testing.T) {
	w := &fakeWorks{}
	b := startWithWorks(t, w, Options{})
	ctx := t.Context()
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	kept := plane("w-kept", b.cluster("kept", `{"placement":{"selector":{"a":"b"}}}`))
	w.put(kept)
	id := b.cluster("forced", `{}`)
	b.place(id)
	w.put(plane("w-1", id))
	b.forceDelete(id)

	b.eventually(
		"fleet marks the placement as Orphaned",
		func() bool { return len(b.orphans()) == 1 && b.placementState(id) == api.Orphaned },
	)
	o := b.orphans()[0]
	checkEqual(t, "the orphan", fmt.Sprintln(o.ID, o.Kind, o.ManagementCluster, o.ClusterID == id,
		o.What[1] == "HostedCluster clusters-"+id+"/hc", o.Size["planes"], o.RemovedBy, o.EndingSince == nil),
		"w-1 Work one true true 1 system:test true\n")
	waits := b.cluster("waits", `{}`)
	if p := b.place(waits); p.State != api.Waiting {
		t.Fatalf("fleet placed another cluster while the orphan runs: %+v", p)
	}
	checkError(t, "releasing an orphan without a reason", b.Release(ctx, cluster.ID(id)), 409, codeState)
	checkError(t, "deleting a work that has an owner", b.DeleteOrphan(ctx, "one", "w-kept", "no"), 409, codeState)
	checkError(t, "deleting an unknown work", b.DeleteOrphan(ctx, "one", "nothing", "no"), 404, codeNotFound)
	checkError(t, "deleting a work without a reason", b.DeleteOrphan(ctx, "one", "w-1", ""), 400, codeInvalid)
	tenant := b.as("mine")
	_, err := tenant.Orphans(ctx, "")
	checkError(t, "a tenant that lists orphans", err, 403, codeForbidden)
	checkError(t, "a tenant that deletes a work", tenant.DeleteOrphan(ctx, "one", "w-1", "x"), 403, codeForbidden)

	if err := b.DeleteOrphan(ctx, "one", "w-1", "nobody needs it"); err != nil {
		t.Fatal(err)
	}
	if o := b.orphans(); len(o) != 1 || o[0].EndingSince == nil {
		t.Fatalf("the orphans during the deletion are %+v", o)
	}
	checkEqual(t, "the usage during the deletion", b.usage(one, "planes"), "0 free, 1 reserved by 1")
	w.confirmDeletions()
	b.eventually(
		"fleet releases the placement",
		func() bool { return b.usage(one, "planes") == "1 free, 0 reserved by 0" },
	)
	checkEqual(t, "the number of orphans at the end", len(b.orphans()), 0)
	b.eventually("fleet places the waiting cluster", func() bool { return b.placeAgain(waits) == api.Placed })
	var record []string
	h, err := b.History(ctx, clustersPlural, id, 0, 20)
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
		t.Errorf("the history has the notes %q, want %q", record, want)
	}
}

func (b *testRegion) placementState(id string) api.PlacementState {
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

func (b *testRegion) placeAgain(cluster string) api.PlacementState { return b.place(cluster).State }

// Fleet does not release the reservation of a force-deleted cluster while Maestro does not answer, while the management
// cluster is lost, or while its agent has a work that Maestro does not know.
func TestI9AnUnconfirmedAbsenceReleasesNoPlacement(t *testing.T) {
	w := &fakeWorks{}
	b := startWithWorks(t, w, Options{})
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	id := b.cluster("forced", `{}`)
	b.place(id)
	w.mu.Lock()
	w.fails = fmt.Errorf("Maestro does not answer")
	w.mu.Unlock()
	b.forceDelete(id)
	b.eventually("fleet marks the placement as Orphaned", func() bool { return b.placementState(id) == api.Orphaned })
	staysReserved := func(what string) {
		t.Helper()
		before := b.orphanPasses()
		b.eventually("fleet checks orphans for longer than ConfirmAfter",
			func() bool { return b.orphanPasses() > before+30 })
		checkEqual(t, what, b.usage(one, "planes"), "0 free, 1 reserved by 1")
	}
	staysReserved("the usage without Maestro")
	b.reportLost(one)
	w.mu.Lock()
	w.fails = nil
	w.mu.Unlock()
	staysReserved("the usage without the agent")
	unknown := Work{ID: work.BundleID("hosted-cluster", "one", "work-"+id), ManagementCluster: "one",
		Since: time.Now()}
	w.put(unknown)
	b.reportConnected(one)
	staysReserved("the usage with a work that only the agent knows")
	if o := b.orphans(); len(o) != 2 || !slices.ContainsFunc(o, func(o api.Orphan) bool {
		return o.Kind == api.UnknownWork
	}) {
		t.Errorf("the orphans are %+v", o)
	}
	w.mu.Lock()
	delete(w.all, unknown.ID)
	w.mu.Unlock()
	b.eventually(
		"fleet releases the placement",
		func() bool { return b.usage(one, "planes") == "1 free, 0 reserved by 0" },
	)
}

// orphanPasses returns how often fleet has checked orphans.
func (b *testRegion) orphanPasses() int64 { return b.fleet.orphanPasses.Load() }

// With EndOrphansAfter, fleet deletes the works of a force-deleted cluster after that time. It never deletes works of
// clusters that CLM has no record of, because CLM's database may have been restored.
func TestFleetDeletesOrphansAfterTheConfiguredTime(t *testing.T) {
	w := &fakeWorks{}
	b := startWithWorks(t, w, Options{EndOrphansAfter: time.Second})
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	w.put(plane("w-unrecorded", "0199a0b1-0000-7000-8000-000000000001"))
	id := b.cluster("forced", `{}`)
	b.place(id)
	w.put(plane("w-1", id))
	b.forceDelete(id)
	b.eventually(
		"fleet deletes the work and releases the placement",
		func() bool { w.confirmDeletions(); return b.usage(one, "planes") == "1 free, 0 reserved by 0" },
	)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ended) != 1 || !strings.HasPrefix(w.ended[0], "w-1 its cluster is gone for more than 1s") {
		t.Errorf("fleet ended %q", w.ended)
	}
}

// Neither a waiting cluster that is force-deleted nor a cluster whose deletion ends without a release keeps a
// reservation.
func TestI9ARemovedClusterKeepsNoReservation(t *testing.T) {
	b := startWithWorks(t, &fakeWorks{}, Options{})
	one := b.mc("one", `{"capacity":{"planes":1}}`, nil)
	id := b.cluster("lives", `{}`)
	b.place(id)
	waits := b.cluster("waits", `{}`)
	checkEqual(t, "the state of the second cluster", b.place(waits).State, api.Waiting)
	b.forceDelete(waits)
	b.eventually("fleet removes the waiting placement", func() bool { return b.placementState(waits) == "" })
	if _, err := b.Delete(t.Context(), clustersPlural, id, ""); err != nil {
		t.Fatal(err)
	}
	b.report(id, 2, "True")
	b.eventually("fleet releases the placement of the removed cluster",
		func() bool { return b.usage(one, "planes") == "1 free, 0 reserved by 0" })
}
