package recovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
)

// region has the answers of a lifecycle manager with one management cluster and one cluster, and of a Maestro whose
// agent lists its works at the second comparison. The adapters report on the cluster when the lifecycle manager
// accepts a request to reconcile it; the lifecycle manager refuses the first requests.
type region struct {
	mu         sync.Mutex
	refusals   int       // requests to reconcile the cluster that are still to be refused
	reported   time.Time // the last report on the cluster
	agentLists int       // lists of consumers before the agent has listed its works
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
			"conditions": []any{map[string]any{"type": "Reconciled", "status": "True", "last_updated_time": g.reported}}}})
	})
	m.HandleFunc("POST "+base+string(clmclient.AllKinds)+"/reconcile", func(w http.ResponseWriter, _ *http.Request) {
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
	g := &region{refusals: 2, reported: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), agentLists: 2}
	clmServer, maestroServer := httptest.NewServer(g.lifecycleManager()), httptest.NewServer(g.maestro())
	defer clmServer.Close()
	defer maestroServer.Close()
	lifecycle, err := clmclient.New(clmclient.Options{Endpoint: clmServer.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer lifecycle.Close()
	m, err := maestroclient.New(maestroclient.Options{HTTP: maestroServer.URL, GRPC: "127.0.0.1:1", Source: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	report, err := Rebuild(t.Context(), Options{CLM: lifecycle, Maestro: m, Timeout: time.Minute})
	if err != nil || !report.Done || g.refusals != 0 {
		t.Errorf("%v; %d refusals are left; %+v", err, g.refusals, report)
	}
}
