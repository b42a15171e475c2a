package hosting

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
)

// A cluster that cannot be hosted has a reason in its status and no process, and
// leaves nothing when it is deleted.
func TestARefusedClusterIsReportedAndNeverStarted(t *testing.T) {
	w := newWorld(t, "refused")
	unknown := w.create("unknown", map[string]any{"release": map[string]any{"image": "atoll.dev/release:9.9.9"}})
	overlap := w.create("overlap", map[string]any{"networking": map[string]any{
		"clusterNetwork": []any{map[string]any{"cidr": "10.0.0.0/14"}}, "serviceNetwork": []any{
			map[string]any{"cidr": "10.1.0.0/16"}},
	}})
	shape := w.create("shape", map[string]any{"networking": map[string]any{"clusterNetwork": "10.0.0.0/14"}})
	holder := w.create("holder", map[string]any{"kubeAPIServerDNSName": "one.example", "pausedUntil": "true"})
	w.condition(holder, hypershift.Available, "False", reasonPaused)
	robber := w.create("robber", map[string]any{"kubeAPIServerDNSName": "one.example"})

	w.condition(unknown, hypershift.ValidReleaseImage, "False", reasonVersionNotAvailable)
	w.condition(unknown, hypershift.Available, "False", reasonVersionNotAvailable)
	for _, c := range []struct {
		hc   *hypershift.HostedCluster
		part string
	}{
		{w.condition(overlap, hypershift.Available, "False", reasonInvalid), "10.1.0.0/16 overlaps with 10.0.0.0/14"},
		{w.condition(robber, hypershift.Available, "False", reasonInvalid), "one.example is another cluster's"},
	} {
		valid := meta.FindStatusCondition(c.hc.Status.Conditions, hypershift.ValidConfiguration)
		if valid.Status != "False" || !strings.Contains(valid.Message, c.part) {
			t.Errorf("%s: %+v", c.hc.Name, valid)
		}
	}
	w.wait("the status of a spec that cannot be decoded", func() error {
		object, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(shape.Namespace).Get(t.Context(),
			shape.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if text := fmt.Sprint(object.Object["status"]); !strings.Contains(text, "reading HostedCluster") {
			return fmt.Errorf("status %s", text)
		}
		return nil
	})
	w.patch(shape, `{"spec":{"networking":null,"pausedUntil":"true"}}`)
	w.condition(shape, hypershift.ValidConfiguration, "True", reasonAsExpected)
	if ps := w.processes(); len(ps) > 0 {
		t.Errorf("processes of what is refused: %v", ps)
	}
	w.delete(holder)
	w.gone(holder)
	w.patch(robber, `{"spec":{"pausedUntil":"true"}}`) // the name is free, and nothing is to start
	w.condition(robber, hypershift.ValidConfiguration, "True", reasonAsExpected)
	for _, key := range []controlplane.ID{unknown, overlap, shape, robber} {
		w.delete(key)
		w.gone(key)
	}
}
