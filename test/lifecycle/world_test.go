package lifecycle

import (
	"fmt"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/api/clm"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

const (
	consumer = "management-01"
	clusters = clmclient.Collection("clusters")
	entities = `
entities:
- {kind: Cluster, plural: clusters, name_min_len: 3, name_max_len: 54, required_adapters: [cl-maestro, cl-namespace]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade, name_max_len: 15,
   required_adapters: [np-configmap]}
`
)

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	placedHere = clm.Labels{"atoll.dev/management-cluster": consumer}
)

// startWorld starts a region with one management cluster and adapters that make ConfigMaps.
func startWorld(t *testing.T) (*testworld.World, *testworld.Cluster) {
	t.Helper()
	w := testworld.Start(t, testworld.Options{Entities: entities, Clusters: []work.Consumer{consumer},
		Adapters: []string{"cl-maestro", "cl-namespace", "np-configmap"}})
	return w, w.Clusters[consumer]
}

// hasValue returns a check that a ConfigMap has a value.
func hasValue(c *testworld.Cluster, ns, name, key, want string) func() error {
	return func() error {
		o, err := c.Object(configMaps, ns, name)
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedString(o.Object, "data", key); got != want {
			return fmt.Errorf("%s is %q", key, got)
		}
		return nil
	}
}
