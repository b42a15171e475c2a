package loop_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/hosting/loop"
)

// An object that was dropped for want of room was not reconciled before it changed, although others were deleted.
func TestADroppedObjectGetsTheRoomOfADeletedOne(t *testing.T) {
	b := start(t, "loop-room", func(o *loop.Options) {
		o.Bound = &loop.Bound{Selector: "bounded=true", Most: 2}
	}, func(call) (time.Duration, error) { return 0, nil })
	seen := map[string]bool{}
	await := func(name string) {
		t.Helper()
		for !seen[name] {
			c := b.next()
			seen[c.key.Name] = seen[c.key.Name] || c.object != nil
		}
	}
	for i := range 4 {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
		object.SetName(fmt.Sprint("c", i))
		object.SetLabels(map[string]string{"bounded": "true"})
		if _, err := b.client.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await("c0")
	await("c1")
	for i := range 2 { // the listing after the first deletion drops c3 again
		if err := b.client.Delete(t.Context(), fmt.Sprint("c", i), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		await(fmt.Sprint("c", i+2))
	}
}
