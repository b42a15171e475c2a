package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// logFailure stops the agent of a failed test and logs what its core waits for: the state of
// each work, and the AppliedManifestWork and objects of the work as the API server has them.
func (w *world) logFailure(t *testing.T) {
	w.agent.stop() // from now on no other goroutine uses the core
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := w.agent.core
	t.Logf("the agent: %d works, %d statuses pending, API server down: %v, next timer in %s", len(c.works),
		len(c.out.pending), c.apiDown, time.Until(c.nextWake()).Round(time.Millisecond))
	shown := 0
	for _, id := range slices.Sorted(maps.Keys(c.works)) {
		held := c.works[id]
		if len(c.works) > 5 && w.server.isApplied(id) {
			continue
		}
		if shown++; shown > 5 {
			return
		}
		t.Logf("work %s: %s", id, held.describe())
		keys := map[objectKey]bool{{GroupVersionResource: appliedWorks, Name: c.cfg.hubHash + "-" + string(held.amw)}: true}
		for _, m := range held.manifests {
			if m.key.Resource != "" {
				keys[m.key] = true
			}
		}
		for key := range held.removals {
			keys[key] = true
		}
		for _, key := range slices.SortedFunc(maps.Keys(keys), compareKeys) {
			t.Logf("%s:\n%s", key, w.describeObject(ctx, key))
		}
	}
}

// describe returns the calls and removals that the work waits for.
func (w *workState) describe() string {
	var b strings.Builder
	if w.spec != nil {
		fmt.Fprintf(&b, "generation %d, deleting %v, ", w.spec.Generation, w.spec.Deleting)
	}
	fmt.Fprintf(&b, "next spec %v, teardown begun %v, calls in flight %d, AMW call in flight %v, AMW error %q, AMW due %s",
		w.nextSpec != nil, w.teardownBegun, w.callsInFlight, w.amwCallInFlight, w.amwErr, w.amwDue)
	for key, r := range w.removals {
		fmt.Fprintf(&b, "\n  removal of %s: in flight %v, finished %v, %d failures, retry at %s", key, r.inFlight,
			r.finished, r.failures, r.retryAt)
	}
	return b.String()
}

// describeObject returns the object as YAML without its managed fields, or the error of the
// API server.
func (c *cluster) describeObject(ctx context.Context, key objectKey) string {
	obj, err := c.in(key.GroupVersionResource, key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	unstructured.RemoveNestedField(obj.Object, "metadata", "managedFields")
	text, err := yaml.Marshal(obj.Object)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
