package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/internal/quick"
)

// region has the answers of a lifecycle manager with one management cluster and one cluster, and of a Maestro whose
// agent lists its works at the second comparison. The adapters report on the cluster when the lifecycle manager
// accepts a request to reconcile it; the lifecycle manager refuses the first requests.
type region struct {
	mu         sync.Mutex
	refusals   int       // requests to reconcile the cluster that are still to be refused
	reported   time.Time // the last report on the cluster
	agentLists int       // lists of consumers before the agent has listed its works
	// reportsAtOnce: the adapters report on the cluster when all resources are requested.
	reportsAtOnce bool
	isBroken      bool // the adapters have reported the cluster as not reconciled
}

func (g *region) status() string {
	if g.isBroken {
		return "False"
	}
	return "True"
}

func (g *region) lifecycleManager() http.Handler {
	const base = "/api/hyperfleet/v1/"
	m := http.NewServeMux()
	m.HandleFunc("GET "+base+"openapi", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"paths":{%q:{"get":{"operationId":"list"}},%q:{"get":{"operationId":"listManagementCluster"}}}}`,
			base+clmclient.AllKinds, base+clmclient.ManagementClusters)
	})
	list := func(w http.ResponseWriter, items ...any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "total": len(items)})
	}
	m.HandleFunc("GET "+base+string(clmclient.ManagementClusters), func(w http.ResponseWriter, _ *http.Request) {
		list(w, map[string]any{"id": "m", "kind": "ManagementCluster", "name": "mc1"})
	})
	m.HandleFunc("GET "+base+string(clmclient.AllKinds), func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		list(w, map[string]any{"id": "c", "kind": "Cluster", "name": "one", "generation": 1, "status": map[string]any{
			"conditions": []any{map[string]any{"type": "Reconciled", "status": g.status(), "last_updated_time": g.reported}}}})
	})
	m.HandleFunc("POST "+base+string(clmclient.AllKinds)+"/reconcile", func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.reportsAtOnce {
			g.reported = g.reported.Add(time.Second)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	m.HandleFunc("POST "+base+string(clmclient.AllKinds)+"/c/reconcile", func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.refusals > 0 {
			g.refusals--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		g.reported = g.reported.Add(time.Second)
		w.WriteHeader(http.StatusAccepted)
	})
	return m
}

func (g *region) maestro() http.Handler {
	const base = "/api/maestro/v1/"
	m := http.NewServeMux()
	m.HandleFunc("GET "+base+"consumers", func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		consumer := map[string]any{"id": "m", "name": "mc1"}
		if g.agentLists--; g.agentLists < 0 {
			consumer["compared_at"] = time.Now()
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": []any{consumer}, "total": 1})
	})
	for _, empty := range []string{"resource-bundles", "unknown-works"} {
		m.HandleFunc("GET "+base+empty, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"items":[],"total":0}`)
		})
	}
	return m
}

// A lifecycle manager that is unavailable for a moment gets the requests to reconcile again: without them the rebuild
// would wait for the adapters' next turn.
func TestI8ARebuildRepeatsRefusedRequestsToReconcile(t *testing.T) {
	quick.LeavesOut(t, "waits between repeated requests")
	g := &region{refusals: 2, reported: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), agentLists: 2}
	report, err := Rebuild(t.Context(), g.options(t))
	if err != nil || !report.Done || g.refusals != 0 {
		t.Errorf("%v; %d refusals are left; %+v", err, g.refusals, report)
	}
}

// options returns the options of a rebuild of the region.
func (g *region) options(t *testing.T) Options {
	t.Helper()
	clmServer, maestroServer := httptest.NewServer(g.lifecycleManager()), httptest.NewServer(g.maestro())
	t.Cleanup(clmServer.Close)
	t.Cleanup(maestroServer.Close)
	lifecycle, err := clmclient.New(clmclient.Options{Endpoint: clmServer.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lifecycle.Close() })
	m, err := maestroclient.New(maestroclient.Options{HTTP: maestroServer.URL, GRPC: "127.0.0.1:1", Source: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return Options{CLM: lifecycle, Maestro: m, Timeout: 5 * time.Minute}
}

// A rebuild is stopped after its requests have made the adapters report a cluster as not reconciled. The next run knows
// that the cluster was reconciled before the loss, and waits for it.
func TestI8ASecondRunComparesWithTheStateBeforeTheLoss(t *testing.T) {
	g := &region{reported: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), agentLists: 1000, reportsAtOnce: true}
	o := g.options(t)
	o.StateFile = filepath.Join(t.TempDir(), "rebuild.json")
	ctx, stop := context.WithCancel(t.Context())
	o.Compared = func(Report, time.Duration) { stop() }
	if _, err := Rebuild(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("the first run: %v", err)
	}

	g.mu.Lock()
	g.isBroken, g.agentLists = true, 0
	g.mu.Unlock()
	var waited []Wait
	var continued time.Time
	o.Continued = func(begun time.Time) { continued = begun }
	o.Compared = func(r Report, _ time.Duration) {
		waited = append(waited, r.Waiting...)
		g.mu.Lock()
		g.isBroken = false // the adapters have restored it
		g.mu.Unlock()
	}
	report, err := Rebuild(t.Context(), o)
	if err != nil || !report.Done {
		t.Fatalf("%v; %+v", err, report)
	}
	if continued.IsZero() || len(waited) != 1 || waited[0].ID != "c" {
		t.Errorf("continued from %v, waited for %+v", continued, waited)
	}
	if _, err := os.Stat(o.StateFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state of a complete rebuild is left: %v", err)
	}

	g.mu.Lock()
	g.isBroken = true // for another reason, after the rebuild
	g.mu.Unlock()
	o.Compared = nil
	if report, err := Rebuild(t.Context(), o); err != nil || !report.Done {
		t.Errorf("a rebuild of its own: %v; %+v", err, report)
	}
}

func TestTheStateOfARebuildHasAllReconciledResources(t *testing.T) {
	resource := func(status string) clm.Resource {
		return clm.Resource{Status: clm.ResourceStatus{Conditions: []clm.ResourceCondition{{Type: "Reconciled", Status: status}}}}
	}
	st := state{Reconciled: []string{"deleted", "was"}}
	before := map[string]clm.Resource{"was": resource("False"), "is": resource("True"), "never": resource("False")}
	st.merge(before)
	if diff := cmp.Diff([]string{"is", "was"}, st.Reconciled); diff != "" {
		t.Error(diff)
	}
	want := map[string]clm.Resource{"was": resource("True"), "is": resource("True"), "never": resource("False")}
	if diff := cmp.Diff(want, before); diff != "" {
		t.Error(diff)
	}
}
