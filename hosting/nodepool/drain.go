package nodepool

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// orphanDrain is the drain limit of nodes whose pool does not exist or is being
	// deleted, when the pool orders none.
	orphanDrain = 10 * time.Minute
	// evictedRetry is how soon a new drain looks again for evicted pods, refusedRetry how
	// soon an old one does, and how soon a drain looks for pods that a disruption budget keeps.
	evictedRetry = 50 * time.Millisecond
	refusedRetry = 2 * time.Second
)

func podResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// cordon marks a node as draining; the scheduler places no pods on it any more.
func (s *site) cordon(ctx context.Context, n *node, now time.Time) error {
	if n.draining() && n.Spec.Unschedulable {
		return nil
	}
	return s.patch(ctx, n, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{drainingAnnotation: n.drainingSince(now).UTC().Format(
			time.RFC3339)}},
		"spec": map[string]any{"unschedulable": true},
	})
}

// drain evicts the pods of a cordoned node, and removes the node when no pod is
// left. It returns after which time to call it again; 0: the node is removed. After
// timeout, when that is not 0, it removes the node with its pods.
func (s *site) drain(ctx context.Context, n *node, timeout time.Duration, now time.Time) (time.Duration, error) {
	pods, err := s.podsOn(ctx, n)
	if err != nil {
		return 0, err
	}
	var again time.Duration
	pause := evictedPause(now.Sub(n.drainingSince(now)))
	for _, p := range pods {
		if !mustMove(&p) {
			continue
		}
		wait := pause
		if p.GetDeletionTimestamp() == nil {
			refused, err := s.evict(ctx, &p)
			if err != nil {
				return 0, err
			}
			wait = max(wait, refused)
		}
		again = sooner(again, wait)
	}
	if left := timeout - now.Sub(n.drainingSince(now)); again > 0 && (timeout == 0 || left > 0) {
		if timeout > 0 {
			again = min(again, left)
		}
		return again, nil
	}
	return 0, s.remove(ctx, n)
}

func (s *site) podsOn(ctx context.Context, n *node) ([]unstructured.Unstructured, error) {
	list, err := s.client.Resource(podResource()).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" +
		n.Metadata.Name})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %s of %s: %w", n.Metadata.Name, s.cluster, err)
	}
	return list.Items, nil
}

// mustMove reports whether a drain waits for a pod: not for a pod that has ended, and
// not for a pod of the node itself (of a DaemonSet, or static).
func mustMove(pod *unstructured.Unstructured) bool {
	if phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase"); phase == "Succeeded" ||
		phase == "Failed" {
		return false
	}
	if pod.GetAnnotations()["kubernetes.io/config.mirror"] != "" {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.Kind != "DaemonSet"
}

// evictedPause returns after which time a drain of some age looks again for evicted pods: the containers of a real node
// take the time to end that their pods give them, or for ever.
func evictedPause(age time.Duration) time.Duration {
	return min(max(age/10, evictedRetry), refusedRetry)
}

// evict evicts a pod and returns after which time to try again when a disruption budget keeps it, else 0.
func (s *site) evict(ctx context.Context, pod *unstructured.Unstructured) (time.Duration, error) {
	eviction := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]any{"name": pod.GetName(),
			"namespace": pod.GetNamespace()},
	}}
	_, err := s.client.Resource(podResource()).Namespace(pod.GetNamespace()).Create(ctx, eviction,
		metav1.CreateOptions{}, "eviction")
	switch {
	case apierrors.IsTooManyRequests(err): // a disruption budget
		return refusedRetry, nil
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("evicting %s/%s: %w", pod.GetNamespace(), pod.GetName(), err)
	}
	return 0, nil
}

// remove deletes a node and its remaining pods, which no kubelet would end.
func (s *site) remove(ctx context.Context, n *node) error {
	precondition := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.Metadata.UID}}
	err := s.client.Resource(nodeResource()).Delete(ctx, n.Metadata.Name, precondition)
	if apierrors.IsConflict(err) {
		return nil // another node of the same name
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing node %s of %s: %w", n.Metadata.Name, s.cluster, err)
	}
	pods, err := s.podsOn(ctx, n)
	if err != nil {
		return err
	}
	at := int64(0)
	for _, p := range pods {
		uid := p.GetUID()
		err := s.client.Resource(podResource()).Namespace(p.GetNamespace()).Delete(ctx, p.GetName(),
			metav1.DeleteOptions{GracePeriodSeconds: &at, Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting %s/%s with its node: %w", p.GetNamespace(), p.GetName(), err)
		}
	}
	return nil
}
