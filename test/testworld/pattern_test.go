package testworld_test

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/api/clm"
	"atoll.dev/api/work"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

// TestAClusterIsReconciledAndDeleted is the pattern for a test that follows a cluster through a region.
func TestAClusterIsReconciledAndDeleted(t *testing.T) {
	w := testworld.Start(t, testworld.Options{
		Entities: `entities: [{kind: Cluster, plural: clusters, required_adapters: [cl-maestro]}]`,
		Clusters: []work.Consumer{"mc1"}, Adapters: []string{"cl-maestro"}})
	shop := w.Create("clusters", "Cluster", "shop", `{}`, clm.Labels{"atoll.dev/management-cluster": "mc1"})
	w.AwaitReconciled("clusters", shop.ID, 1)
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if _, err := w.Clusters["mc1"].Object(namespaces, "", "clusters-"+shop.ID); err != nil {
		t.Error(err)
	}
	w.Delete("clusters", shop.ID)
	w.AwaitGone("clusters", shop.ID)
}
