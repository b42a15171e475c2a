package lifecycle

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// A cluster's whole life, with its node pool: created, changed, disturbed by others, deleted; nothing is left.
func TestAClusterIsCreatedChangedRepairedAndDeleted(t *testing.T) {
	w, mc := startWorld(t)
	cluster := w.Create(clusters, "Cluster", "first", `{"size":1}`, placedHere)
	w.AwaitReconciled(clusters, cluster.ID, 1) // by two adapters
	byMaestro, byKubernetes := "clusters-"+cluster.ID, "hf-"+cluster.ID
	for _, ns := range []string{byMaestro, byKubernetes} {
		if _, err := mc.Object(namespaces, "", ns); err != nil {
			t.Error(err)
		}
	}

	pools := clusters.Below(cluster.ID, "nodepools")
	pool := w.Create(pools, "NodePool", "workers", `{"replicas":2}`, nil)
	w.AwaitReconciled(pools, pool.ID, 1)

	if got := w.Replace(clusters, cluster.ID, `{"spec":{"size":2}}`); got.Generation != 2 {
		t.Fatalf("generation %d", got.Generation)
	}
	w.AwaitReconciled(clusters, cluster.ID, 2)
	if err := hasValue(mc, byMaestro, "cluster-config", "generation", "2")(); err != nil {
		t.Error(err)
	}

	disturb := func(kind schema.GroupVersionResource, ns, name, patch string) {
		t.Helper()
		if _, err := mc.In(kind, ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{FieldManager: "other"}); err != nil {
			t.Fatal(err)
		}
	}
	disturb(namespaces, "", byKubernetes, `{"metadata":{"labels":{"hyperfleet.io/cluster-name":"other"}}}`)
	w.Await("a label of the namespace is set back (Kubernetes)", func() error {
		ns, err := mc.Object(namespaces, "", byKubernetes)
		if err == nil && ns.GetLabels()["hyperfleet.io/cluster-name"] != "first" {
			err = fmt.Errorf("labels %v", ns.GetLabels())
		}
		return err
	})
	ofPool := "nodepool-" + pool.ID
	disturb(configMaps, byKubernetes, ofPool, `{"data":{"nodepool_name":"other"}}`)
	w.Await("data of a ConfigMap is set back (Kubernetes)", hasValue(mc, byKubernetes, ofPool, "nodepool_name", "workers"))
	disturb(configMaps, byMaestro, "cluster-config", `{"data":{"cluster_name":"other"}}`)
	w.Await("data of a ConfigMap is set back (Maestro)",
		hasValue(mc, byMaestro, "cluster-config", "cluster_name", "first"))
	if err := mc.In(configMaps, byKubernetes).Delete(t.Context(), ofPool, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Await("a deleted ConfigMap is created again", hasValue(mc, byKubernetes, ofPool, "nodepool_name", "workers"))

	w.Delete(clusters, cluster.ID)
	w.AwaitGone(clusters, cluster.ID) // with the node pool and both namespaces
	for _, ns := range []string{byMaestro, byKubernetes} {
		if _, err := mc.Object(namespaces, "", ns); !apierrors.IsNotFound(err) {
			t.Errorf("the cluster is gone, and namespace %s is not: %v", ns, err)
		}
	}
}

// A cluster without a management cluster reports so and is created when one exists; a cluster that
// never had one can be deleted.
func TestAClusterWithoutAManagementClusterWaits(t *testing.T) {
	w, _ := startWorld(t)
	cluster := w.Create(clusters, "Cluster", "unplaced", `{}`, nil)
	other := w.Create(clusters, "Cluster", "forgotten", `{}`, nil)
	w.AwaitCondition(clusters, cluster.ID, "ClMaestroSuccessful", "False", "NoManagementCluster")
	changed := w.Replace(clusters, cluster.ID, `{"labels":{"atoll.dev/management-cluster":"`+consumer+`"}}`)
	w.AwaitReconciled(clusters, cluster.ID, changed.Generation)
	for _, id := range []string{other.ID, cluster.ID} {
		w.Delete(clusters, id)
	}
	w.AwaitGone(clusters, cluster.ID)
	w.AwaitGone(clusters, other.ID)
}
