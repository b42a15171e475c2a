package interop

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/test/interop/hyperfleet"
)

// hyperfleetEntities is a configuration file as hyperfleet-api reads it: two kinds, two adapters each.
const hyperfleetEntities = `
entities:
- {kind: Cluster, plural: clusters, name_min_len: 3, name_max_len: 53, required_adapters: [validation, dns]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade,
   name_min_len: 3, name_max_len: 15, required_adapters: [validation]}
`

// startLifecycleManager runs "atoll clm serve" without certificates and tokens, as hyperfleet-api may run, and
// returns a generated client for it.
func (w *world) startLifecycleManager(t *testing.T) *hyperfleet.ClientWithResponses {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.dsn("postgres", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "create database hyperfleet owner clm"); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(w.dir, "hyperfleet.yaml")
	if err := os.WriteFile(config, []byte(hyperfleetEntities), 0o600); err != nil {
		t.Fatal(err)
	}
	api, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	ops, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.run("hyperfleet", programPath("ATOLL_BIN", "atoll"), "clm", "serve", "--config", config,
		"--dsn", w.dsn("clm", "hyperfleet"), "--http", api, "--ops", ops)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the lifecycle manager is ready", func() error {
		resp, err := http.Get("http://" + ops + "/readyz")
		if err != nil {
			return fmt.Errorf("%w; its log: %s", err, tail(p.log))
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s; its log: %s", resp.Status, tail(p.log))
		}
		return nil
	})
	client, err := hyperfleet.NewClientWithResponses("http://" + api)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestAGeneratedHyperFleetClientTakesAClusterThroughItsLife is a program that was generated from hyperfleet-api's
// contract: it creates, searches, reports, changes and deletes, and gets the codes that it looks for.
func TestAGeneratedHyperFleetClientTakesAClusterThroughItsLife(t *testing.T) {
	ctx, client := t.Context(), sharedWorld(t).startLifecycleManager(t)
	labels := map[string]string{"env": "prod", "example.com/team": "a"}

	made, err := client.CreateClusterWithResponse(ctx, hyperfleet.ResourceCreate{
		Kind: "Cluster", Name: "shop", Spec: map[string]any{"platform": map[string]any{"type": "gcp"}}, Labels: &labels,
	})
	if err != nil || made.JSON201 == nil {
		t.Fatalf("create: %v %s", err, made.Body)
	}
	id := made.JSON201.ID
	if made.JSON201.Generation != 1 || made.JSON201.Href != "/api/hyperfleet/v1/clusters/"+id ||
		made.JSON201.Status.Conditions == nil {
		t.Errorf("created: %s", made.Body)
	}
	again, err := client.CreateClusterWithResponse(ctx, hyperfleet.ResourceCreate{Kind: "Cluster", Name: "shop",
		Spec: map[string]any{}})
	if err != nil || again.StatusCode() != http.StatusConflict || again.ApplicationProblemJSONDefault == nil {
		t.Errorf("a second cluster of the name: %v %s", err, again.Body)
	}

	for _, search := range []string{
		"name = 'shop'", "labels.env = 'prod'", "labels.example.com/team = 'a'", "labels.env=\"prod\"", "name=\"shop\"",
		"spec.platform.type = 'gcp'", "status.conditions.Reconciled = 'False'", "name like 'sh%' and generation >= 1",
	} {
		order := "created_time desc"
		list, err := client.ListClustersWithResponse(ctx, &hyperfleet.ListClustersParams{Search: &search,
			Order: &order})
		if err != nil || list.JSON200 == nil || list.JSON200.Total != 1 || len(list.JSON200.Items) != 1 ||
			list.JSON200.Items[0].ID != id {
			t.Errorf("search %s: %v %s", search, err, list.Body)
		}
	}
	wrong := "name =="
	if list, err := client.ListClustersWithResponse(ctx, &hyperfleet.ListClustersParams{Search: &wrong}); err != nil ||
		list.StatusCode() != http.StatusBadRequest || list.ApplicationProblemJSONDefault.Code != "HYPERFLEET-VAL-005" {
		t.Errorf("a search that cannot be read: %v %s", err, list.Body)
	}

	report := func(adapter string, generation int32, finalized hyperfleet.StatusConditionCreateStatus) {
		t.Helper()
		ok := hyperfleet.StatusConditionCreateStatus("True")
		res, err := client.PutClusterStatusWithResponse(ctx, id, hyperfleet.StatusCreate{
			Adapter: adapter, ObservedGeneration: generation, ObservedTime: time.Now(),
			Conditions: []hyperfleet.StatusConditionCreate{
				{Type: "Applied", Status: ok}, {Type: "Available", Status: ok}, {Type: "Health", Status: ok},
				{Type: "Finalized", Status: finalized},
			},
		})
		if err != nil || res.StatusCode() != http.StatusCreated {
			t.Fatalf("%s reports on generation %d: %v %s %s", adapter, generation, err, res.Status(), res.Body)
		}
	}
	reconciled := func() hyperfleet.ResourceCondition {
		t.Helper()
		got, err := client.GetClusterWithResponse(ctx, id)
		if err != nil || got.JSON200 == nil {
			t.Fatalf("get: %v %s", err, got.Body)
		}
		i := slices.IndexFunc(got.JSON200.Status.Conditions, func(c hyperfleet.ResourceCondition) bool {
			return c.Type == "Reconciled"
		})
		if i < 0 {
			t.Fatalf("no condition Reconciled: %s", got.Body)
		}
		return got.JSON200.Status.Conditions[i]
	}
	report("validation", 1, "False")
	if c := reconciled(); c.Status != "False" || *c.Reason != "ReconciledMissingAdapters" {
		t.Errorf("one of two adapters has reported: %+v", c)
	}
	report("dns", 1, "False")
	if c := reconciled(); c.Status != "True" || *c.Reason != "ReconciledAll" {
		t.Errorf("both adapters have reported: %+v", c)
	}
	statuses, err := client.ListClusterStatusesWithResponse(ctx, id)
	if err != nil || statuses.JSON200 == nil || statuses.JSON200.Total != 2 {
		t.Errorf("statuses: %v %s", err, statuses.Body)
	}

	spec := map[string]any{"platform": map[string]any{"type": "aws"}}
	patched, err := client.PatchClusterWithResponse(ctx, id, hyperfleet.ResourcePatch{Spec: &spec})
	if err != nil || patched.JSON200 == nil || patched.JSON200.Generation != 2 {
		t.Errorf("patch: %v %s", err, patched.Body)
	}
	if c := reconciled(); c.Status != "False" || c.ObservedGeneration != 2 {
		t.Errorf("after the change: %+v", c)
	}

	pool, err := client.CreateNodePoolWithResponse(ctx, id, hyperfleet.ResourceCreate{Kind: "NodePool", Name: "workers",
		Spec: map[string]any{"replicas": 2}})
	if err != nil || pool.JSON201 == nil || pool.JSON201.OwnerReferences == nil ||
		pool.JSON201.OwnerReferences.ID != id {
		t.Fatalf("node pool: %v %s", err, pool.Body)
	}

	deleted, err := client.DeleteClusterWithResponse(ctx, id)
	if err != nil || deleted.JSON202 == nil || deleted.JSON202.DeletedTime == nil || deleted.JSON202.Generation != 3 {
		t.Fatalf("delete: %v %s", err, deleted.Body)
	}
	if late, err := client.PatchClusterWithResponse(ctx, id, hyperfleet.ResourcePatch{Spec: &spec}); err != nil ||
		late.StatusCode() != http.StatusConflict || late.ApplicationProblemJSONDefault.Code != "HYPERFLEET-CNF-003" {
		t.Errorf("a change of a cluster that is being deleted: %v %s", err, late.Body)
	}
	yes := hyperfleet.StatusConditionCreateStatus("True")
	finalized, err := client.PutNodePoolStatusWithResponse(ctx, pool.JSON201.ID, hyperfleet.StatusCreate{
		Adapter:            "validation",
		ObservedGeneration: 2,
		ObservedTime:       time.Now(),
		Conditions: []hyperfleet.StatusConditionCreate{
			{Type: "Applied", Status: "False"}, {Type: "Available", Status: "False"}, {Type: "Health", Status: yes},
			{Type: "Finalized", Status: yes},
		},
	})
	if err != nil || finalized.StatusCode() != http.StatusCreated {
		t.Errorf("the node pool's adapter is finished: %v %s", err, finalized.Body)
	}
	report("validation", 3, "True")
	report("dns", 3, "True")
	gone, err := client.GetClusterWithResponse(ctx, id)
	if err != nil || gone.StatusCode() != http.StatusNotFound ||
		gone.ApplicationProblemJSONDefault.Code != "HYPERFLEET-NTF-001" {
		t.Errorf("after all adapters are finished: %v %s", err, gone.Body)
	}

	// A cluster whose adapters never answer is removed by force.
	made, err = client.CreateClusterWithResponse(ctx, hyperfleet.ResourceCreate{Kind: "Cluster", Name: "stuck",
		Spec: map[string]any{}})
	if err != nil || made.JSON201 == nil {
		t.Fatalf("create: %v %s", err, made.Body)
	}
	force := func() *hyperfleet.ForceDeleteClusterResponse {
		t.Helper()
		res, err := client.ForceDeleteClusterWithResponse(ctx, made.JSON201.ID, hyperfleet.ForceDelete{
			Reason: "its adapters are gone"})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := force(); res.StatusCode() != http.StatusConflict {
		t.Errorf("by force before a deletion was requested: %s %s", res.Status(), res.Body)
	}
	if res, err := client.DeleteClusterWithResponse(ctx, made.JSON201.ID); err != nil || res.JSON202 == nil {
		t.Errorf("delete: %v %s", err, res.Body)
	}
	if res := force(); res.StatusCode() != http.StatusNoContent {
		t.Errorf("by force: %s %s", res.Status(), res.Body)
	}
	if res := force(); res.StatusCode() != http.StatusNotFound {
		t.Errorf("by force again: %s %s", res.Status(), res.Body)
	}
}
