package nodepool

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// orphanDrainTimeout bounds the drain of a node whose pool does not exist, or is being deleted without a
	// spec.nodeDrainTimeout.
	orphanDrainTimeout = 10 * time.Minute
	// minDrainRetry is the pause before a new drain looks again for evicted pods. The pause grows to maxDrainRetry,
	// which is also the pause before a drain tries again to evict a pod that a disruption budget keeps.
	minDrainRetry = 50 * time.Millisecond
	maxDrainRetry = 2 * time.Second
)

func podResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// cordon marks a node as draining; the scheduler places no pods on it any more.
func (s *watchedPlane) cordon(ctx context.Context, n *node, now time.Time) error {
	if n.isDraining() && n.Spec.Unschedulable {
		return nil
	}
	return s.patch(ctx, n, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{drainingAnnotation: n.drainingSince(now).UTC().Format(
			time.RFC3339)}},
		"spec": map[string]any{"unschedulable": true},
	})
}

// drain evicts the pods of a cordoned node. When no pod is left, or after timeout, it removes the node with its pods.
// It returns the time after which to call it again; 0: the node is removed. A timeout of 0 means no limit. A node with
// more pods than maxPodsOfNode is an errManyPods until timeout, and each call evicts the first of them.
func (s *watchedPlane) drain(ctx context.Context, n *node, timeout time.Duration, now time.Time) (time.Duration,
	error) {
	var again time.Duration
	pause := drainRetryAfter(now.Sub(n.drainingSince(now)))
	err := s.eachPodOn(ctx, n, livePods, func(p *metav1.PartialObjectMetadata) error {
		if !mustMove(p) {
			return nil
		}
		wait := pause
		if p.GetDeletionTimestamp() == nil {
			refused, err := s.evict(ctx, p)
			if err != nil {
				return err
			}
			wait = max(wait, refused)
		}
		again = sooner(again, wait)
		return nil
	})
	left := timeout - now.Sub(n.drainingSince(now))
	mayWait := timeout == 0 || left > 0
	if err != nil && (mayWait || !errors.Is(err, errManyPods)) {
		return 0, err
	}
	if again > 0 && mayWait {
		if timeout > 0 {
			again = min(again, left)
		}
		return again, nil
	}
	return 0, s.removeNode(ctx, n)
}

// mustMove reports whether a drain waits for a pod that has not ended. It does not wait for static pods, and pods of a
// DaemonSet.
func mustMove(pod *metav1.PartialObjectMetadata) bool {
	if pod.GetAnnotations()["kubernetes.io/config.mirror"] != "" {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.Kind != "DaemonSet"
}

// drainRetryAfter returns the pause before a drain of this age looks again for evicted pods: a tenth of the age, within
// minDrainRetry and maxDrainRetry. A pod may take its whole grace period to end, or never end.
func drainRetryAfter(age time.Duration) time.Duration {
	return min(max(age/10, minDrainRetry), maxDrainRetry)
}

// evict evicts a pod. When a disruption budget keeps the pod, evict returns the time after which to try again, else 0.
func (s *watchedPlane) evict(ctx context.Context, pod *metav1.PartialObjectMetadata) (time.Duration, error) {
	eviction := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]any{"name": pod.GetName(),
			"namespace": pod.GetNamespace()},
	}}
	_, err := s.client.Resource(podResource()).Namespace(pod.GetNamespace()).Create(ctx, eviction,
		metav1.CreateOptions{}, "eviction")
	switch {
	case apierrors.IsTooManyRequests(err): // a disruption budget
		return maxDrainRetry, nil
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("evicting %s/%s: %w", pod.GetNamespace(), pod.GetName(), err)
	}
	return 0, nil
}

// removeNode deletes a node and its remaining pods, which no kubelet would end. Of more than maxPodsOfNode it deletes
// the first, and returns an errManyPods; the garbage collector of the plane deletes the others later.
func (s *watchedPlane) removeNode(ctx context.Context, n *node) error {
	precondition := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.Metadata.UID}}
	err := s.client.Resource(nodeResource()).Delete(ctx, n.Metadata.Name, precondition)
	if apierrors.IsConflict(err) {
		return nil // another node of the same name
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing node %s of %s: %w", n.Metadata.Name, s.cluster, err)
	}
	at := int64(0)
	return s.eachPodOn(ctx, n, allPods, func(p *metav1.PartialObjectMetadata) error {
		uid := p.GetUID()
		err := s.client.Resource(podResource()).Namespace(p.GetNamespace()).Delete(ctx, p.GetName(),
			metav1.DeleteOptions{GracePeriodSeconds: &at, Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting %s/%s with its node: %w", p.GetNamespace(), p.GetName(), err)
		}
		return nil
	})
}
