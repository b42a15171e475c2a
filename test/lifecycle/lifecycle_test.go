package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"atoll.dev/plane/planetest"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

const (
	consumer = "management-01"
	entities = `
entities:
- {kind: Cluster, plural: clusters, name_min_len: 3, name_max_len: 54, required_adapters: [cl-maestro, cl-namespace]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade, name_max_len: 15, required_adapters: [np-configmap]}
`
)

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// A cluster's whole life, with its node pool: made, changed, disturbed by
// others, deleted; nothing is left.
func TestAClusterIsCreatedChangedRepairedAndDeleted(t *testing.T) {
	w := newWorld(t)
	cluster := w.call("POST", "/clusters", map[string]any{
		"kind": "Cluster", "name": "first", "spec": map[string]any{"size": 1}, "labels": map[string]any{
			"atoll.dev/management-cluster": consumer},
	})
	path := "/clusters/" + cluster.ID
	w.await("POST until Reconciled, two adapters", w.reconciled(path, 1))
	shipped, own := "clusters-"+cluster.ID, "hf-"+cluster.ID
	for _, ns := range []string{shipped, own} {
		if _, err := w.object(namespaces, "", ns); err != nil {
			t.Error(err)
		}
	}

	pool := w.call("POST", path+"/nodepools", map[string]any{"kind": "NodePool", "name": "workers",
		"spec": map[string]any{"replicas": 2}})
	w.await("POST of a node pool until Reconciled", w.reconciled(path+"/nodepools/"+pool.ID, 1))

	if got := w.call("PATCH", path, map[string]any{"spec": map[string]any{"size": 2}}); got.Generation != 2 {
		t.Fatalf("generation %d", got.Generation)
	}
	w.await("PATCH until Reconciled", w.reconciled(path, 2))
	if err := w.awaitValue(shipped, "cluster-config", "generation", strconv.Itoa(2))(); err != nil {
		t.Error(err)
	}

	disturb := func(ns, name, patch string) {
		t.Helper()
		in := dynamic.ResourceInterface(w.admin.Resource(namespaces))
		if ns != "" {
			in = w.admin.Resource(configMaps).Namespace(ns)
		}
		if _, err := in.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{
			FieldManager: "other"}); err != nil {
			t.Fatal(err)
		}
	}
	disturb("", own, `{"metadata":{"labels":{"hyperfleet.io/cluster-name":"other"}}}`)
	w.await("a label of the namespace is set back (Kubernetes)", func() error {
		ns, err := w.object(namespaces, "", own)
		if err == nil && ns.GetLabels()["hyperfleet.io/cluster-name"] != "first" {
			err = fmt.Errorf("labels %v", ns.GetLabels())
		}
		return err
	})
	disturb(own, "nodepool-"+pool.ID, `{"data":{"nodepool_name":"other"}}`)
	w.await("data of a ConfigMap is set back (Kubernetes)", w.awaitValue(own, "nodepool-"+pool.ID, "nodepool_name",
		"workers"))
	disturb(shipped, "cluster-config", `{"data":{"cluster_name":"other"}}`)
	w.await("data of a ConfigMap is set back (Maestro)", w.awaitValue(shipped, "cluster-config", "cluster_name", "first"))
	if err := w.admin.Resource(configMaps).Namespace(own).Delete(t.Context(), "nodepool-"+pool.ID,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await("a deleted ConfigMap is created again",
		w.awaitValue(own, "nodepool-"+pool.ID, "nodepool_name", "workers"))

	if err := w.Call(t.Context(), "DELETE", path, nil, nil); err != nil {
		t.Fatal(err)
	}
	w.await("DELETE until 404, with the node pool and both namespaces", w.gone(path))
	for _, ns := range []string{shipped, own} {
		if _, err := w.object(namespaces, "", ns); !apierrors.IsNotFound(err) {
			t.Errorf("the cluster is gone, and namespace %s is not: %v", ns, err)
		}
	}
}

// A cluster without a management cluster reports so and is created when one exists; a cluster that
// never had one can be deleted.
func TestAClusterWithoutAManagementClusterWaits(t *testing.T) {
	w := newWorld(t)
	cluster := w.call("POST", "/clusters", map[string]any{"kind": "Cluster", "name": "homeless",
		"spec": map[string]any{}})
	other := w.call("POST", "/clusters", map[string]any{"kind": "Cluster", "name": "forgotten",
		"spec": map[string]any{}})
	path := "/clusters/" + cluster.ID
	w.await("the report says what is missing", func() error {
		r := w.call("GET", path, nil)
		for _, c := range r.Status.Conditions {
			if c.Type == "ClMaestroSuccessful" && c.Status == "False" && c.Reason == "NoManagementCluster" {
				return nil
			}
		}
		return fmt.Errorf("%+v", r.Status.Conditions)
	})
	w.call("PATCH", path, map[string]any{"labels": map[string]any{"atoll.dev/management-cluster": consumer}})
	w.await("a label until Reconciled", func() error {
		if r := w.call("GET", path, nil); !r.Reconciled() {
			return fmt.Errorf("%+v", r.Status.Conditions)
		}
		return nil
	})
	for _, id := range []string{other.ID, cluster.ID} {
		if err := w.Call(t.Context(), "DELETE", "/clusters/"+id, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.await("DELETE until 404", func() error { return errors.Join(w.gone(path)(), w.gone("/clusters/"+other.ID)()) })
}
