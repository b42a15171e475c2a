package nodepool

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// Between the steps of a rotation of the CA, local nodes of an earlier CA are replaced one after the other, as for an
// upgrade. Before and after, and in pools of other providers, the CA of a node is no reason.
func TestARotationOfTheCAReplacesLocalNodes(t *testing.T) {
	pool := &hypershift.NodePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hc-n", UID: "pool"}}
	for name, c := range map[string]struct {
		provider cluster.NodeProvider
		earlier  bool
		ca       controlplane.CAID // of the node
		create   int
	}{
		"a local node of the earlier CA":       {cluster.Local, true, "old", 1},
		"a local node of before annotations":   {cluster.Local, true, "", 1},
		"a local node of the new CA":           {cluster.Local, true, "new", 0},
		"outside of a rotation":                {cluster.Local, false, "old", 0},
		"a simulated node has no certificates": {cluster.Simulated, true, "old", 0},
		"a machine of a customer joins again":  {cluster.External, true, "old", 0},
	} {
		w := want(1, "1.36.3")
		w.provider, w.trust = c.provider, controlplane.Trust{ID: "new", HasEarlier: c.earlier}
		n := testNode(0, "1.36.3", metav1.ConditionTrue)
		n.Status.NodeInfo.Runtime = "containerd"
		n.Metadata.Annotations = map[string]string{controlplane.NodeCAAnnotation: string(c.ca)}
		d := plan(w, []*node{n}, epoch, time.Hour)
		if d.createCount != c.create || len(d.drain)+len(d.remove)+len(d.inPlace) > 0 {
			t.Errorf("%s: %+v", name, d)
		}
		made, err := w.newNode(pool, "n-1", 1)
		if err != nil || made.GetAnnotations()[controlplane.NodeCAAnnotation] != "new" {
			t.Errorf("%s: a new node has %v, %v", name, made.GetAnnotations(), err)
			continue
		}
		trimNode(made) // as the watch of Nodes keeps it
		kept, err := loop.Decode[node](made)
		if err != nil || w.hasEarlierCA(kept) {
			t.Errorf("%s: a new node counts as one of the earlier CA: %v, %v", name, kept.Metadata.Annotations, err)
		}
	}
}
