package hosting

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/loop"
)

func (h *Hosting) addFinalizer(ctx context.Context, object *unstructured.Unstructured) error {
	if slices.Contains(object.GetFinalizers(), finalizer) {
		return nil
	}
	return h.setFinalizers(ctx, object, append(object.GetFinalizers(), finalizer))
}

// setFinalizers replaces the list of an object that has not changed since it was
// read. The error of an object that no longer exists is loop.IsGone.
func (h *Hosting) setFinalizers(ctx context.Context, object *unstructured.Unstructured, list []string) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": object.GetResourceVersion(), "finalizers": list},
	})
	if err != nil {
		return err
	}
	_, err = h.o.Client.Resource(hypershift.HostedClusters()).Namespace(object.GetNamespace()).Patch(ctx,
		object.GetName(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("finalizers of HostedCluster %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return nil
}

// writeStatus computes the status and patches it when the cluster has another.
func (h *Hosting) writeStatus(ctx context.Context, c *hostedCluster, hc *hypershift.HostedCluster, r report,
	now time.Time) error {
	before := hc.Status
	if c.status != nil {
		before = *c.status
	}
	after := decideStatus(before, r, now)
	had, err := json.Marshal(hc.Status)
	if err != nil {
		return err
	}
	want, err := json.Marshal(after)
	if err != nil {
		return err
	}
	if bytes.Equal(had, want) {
		c.status = &after
		return nil
	}
	body := slices.Concat([]byte(`{"status":`), want, []byte(`}`))
	_, err = h.o.Client.Resource(hypershift.HostedClusters()).Namespace(hc.Namespace).Patch(ctx, hc.Name,
		types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil && !loop.IsGone(err) {
		return fmt.Errorf("status of HostedCluster %s/%s: %w", hc.Namespace, hc.Name, err)
	}
	c.status = &after
	return nil
}
