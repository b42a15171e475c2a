package nodepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/localnodes"
	"atoll.dev/hosting/loop"
)

// Conditions beside those of package hypershift.
const (
	ValidPlatformConfig = "ValidPlatformConfig" // HyperShift's
	Simulated           = "atoll.dev/Simulated" // ours: the nodes run nothing
)

// Reasons. AsExpected and ValidationFailed are HyperShift's.
const (
	AsExpected             = "AsExpected"
	ValidationFailed       = "ValidationFailed"
	ClusterNotFound        = "HostedClusterNotFound"
	WaitingForControlPlane = "WaitingForControlPlane"
	Asleep                 = "Asleep"
	ScalingUp              = "ScalingUp"
	ScalingDown            = "ScalingDown"
	NodesNotReady          = "NodesNotReady"
	UpdatingNodes          = "Updating"
	NetworkFull            = "NetworkFull"
	Paused                 = "ReconciliationPaused"
	ProviderUnavailable    = "ProviderUnavailable"
	WaitingForMachines     = "WaitingForMachines"
)

// conditionsOf computes the pool's conditions from its nodes.
func conditionsOf(pool *hypershift.NodePool, w wanted, nodes []*node) []hypershift.NodePoolCondition {
	ready, outdated, leaving := 0, 0, 0
	for _, n := range nodes {
		switch {
		case n.isDraining() || n.Metadata.DeletionTimestamp != nil:
			leaving++
			continue
		case n.isReady():
			ready++
		}
		if w.invalid == nil && !w.isCurrent(n) {
			outdated++
		}
	}
	live := len(nodes) - leaving
	conditions := []hypershift.NodePoolCondition{
		newCondition(hypershift.AutoscalingEnabled, statusOf(pool.Spec.AutoScaling != nil), AsExpected,
			autoscalingText(pool)),
		newCondition(hypershift.UpdateManagement, metav1.ConditionTrue, AsExpected, ""),
		newCondition(
			hypershift.ValidReleaseImage,
			metav1.ConditionTrue,
			AsExpected,
			"Using release image: "+cluster.ReleaseImage(w.version),
		),
		newCondition(ValidPlatformConfig, metav1.ConditionTrue, AsExpected, ""),
		newCondition(hypershift.ReconciliationActive, statusOf(!w.paused), AsExpected, ""),
		newCondition(hypershift.AutorepairEnabled, statusOf(w.autoRepair), AsExpected, ""),
		newCondition(hypershift.UpdatingVersion, statusOf(outdated > 0), AsExpected, ""),
		newCondition(hypershift.AllMachinesReady, statusOf(live >= w.replicas), AsExpected, ""),
		newCondition(hypershift.AllNodesHealthy, statusOf(ready == live), AsExpected, ""),
		simulatedCondition(w.provider),
	}
	set := func(condition, reason, message string) {
		for i := range conditions {
			if c := &conditions[i]; c.Type == condition {
				c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, message
			}
		}
	}
	for _, p := range w.invalid {
		set(p.condition, p.reason, p.message)
	}
	if w.paused {
		set(hypershift.ReconciliationActive, Paused, "spec.pausedUntil is set")
	}
	switch {
	case live < w.replicas && w.provider == cluster.External:
		set(hypershift.AllMachinesReady, WaitingForMachines, w.joinedText(live))
	case live < w.replicas:
		set(hypershift.AllMachinesReady, ScalingUp, fmt.Sprintf("%d of %d nodes are there", live, w.replicas))
	}
	if w.networkFull != nil && live < w.replicas {
		set(hypershift.AllMachinesReady, NetworkFull, w.networkFull.Error())
	}
	if ready < live {
		set(hypershift.AllNodesHealthy, NodesNotReady, w.readyText(ready, live))
	}
	return append(conditions, readyCondition(w, live, ready, outdated, leaving))
}

// simulatedCondition returns the condition Simulated, which distinguishes simulated nodes from real ones.
func simulatedCondition(provider cluster.NodeProvider) hypershift.NodePoolCondition {
	if provider == cluster.External {
		return newCondition(Simulated, metav1.ConditionFalse, "External", "the nodes run on machines of the customer")
	}
	if provider == cluster.Local {
		return newCondition(Simulated, metav1.ConditionFalse, "Local", "the nodes run on the management cluster's machine")
	}
	return newCondition(Simulated, metav1.ConditionTrue, "KWOK", "the nodes are simulated: pods are scheduled and "+
		"shown as running, nothing is executed")
}

// readyText is a message with the number of ready nodes, and the reason why a machine does not run.
func (w wanted) readyText(ready, live int) string {
	text := fmt.Sprintf("%d of %d nodes are ready", ready, live)
	if w.machineProblem != "" {
		text += "; " + w.machineProblem
	}
	return text
}

// readyCondition computes the condition Ready: True when all nodes that the spec orders exist, are ready and current,
// and none is draining.
func readyCondition(w wanted, live, ready, outdated, leaving int) hypershift.NodePoolCondition {
	no := func(reason, message string) hypershift.NodePoolCondition {
		return newCondition(hypershift.Ready, metav1.ConditionFalse, reason, message)
	}
	switch {
	case len(w.invalid) > 0:
		return no(w.invalid[0].reason, w.invalid[0].message)
	case w.networkFull != nil:
		return no(NetworkFull, w.networkFull.Error())
	case live < w.replicas && w.provider != cluster.External:
		return no(ScalingUp, fmt.Sprintf("%d of %d nodes are there", live, w.replicas))
	case ready < live:
		return no(NodesNotReady, w.readyText(ready, live))
	case outdated > 0:
		return no(UpdatingNodes, fmt.Sprintf("%d nodes are still as they were before", outdated))
	case live > w.replicas || leaving > 0:
		return no(ScalingDown, fmt.Sprintf("%d nodes are being drained", live-w.replicas+leaving))
	}
	if live < w.replicas { // of an external pool: a region cannot wait for machines that it does not make
		return newCondition(hypershift.Ready, metav1.ConditionTrue, AsExpected, w.joinedText(live))
	}
	return newCondition(hypershift.Ready, metav1.ConditionTrue, AsExpected, "")
}

// joinedText is a message with the number of joined machines and the number that may join.
func (w wanted) joinedText(joined int) string {
	return fmt.Sprintf("%d of %d machines have joined; for another one: atoll nodepool join-token", joined, w.replicas)
}

func autoscalingText(pool *hypershift.NodePool) string {
	a := pool.Spec.AutoScaling
	if a == nil {
		return ""
	}
	return fmt.Sprintf("Maximum nodes: %d, Minimum nodes: %d; simulated nodes are not scaled by load", a.Max, a.Min)
}

func newCondition(kind string, status metav1.ConditionStatus, reason, message string) hypershift.NodePoolCondition {
	return hypershift.NodePoolCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

func statusOf(holds bool) metav1.ConditionStatus {
	if holds {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// reportWaiting writes into the status why the pool waits. A pool that was ready at this generation stays ready,
// because a short outage of its plane does not change its nodes; without a HostedCluster it does not.
func (k *reconciler) reportWaiting(ctx context.Context, pool *hypershift.NodePool, reason, message string) error {
	if reason != ClusterNotFound && isReadyNow(pool) {
		return nil
	}
	return k.writeStatus(ctx, pool, pool.Status.Replicas, pool.Status.Version, []hypershift.NodePoolCondition{
		newCondition(hypershift.Ready, metav1.ConditionFalse, reason, message)})
}

// reportAsleep writes into the status that the plane sleeps. A ready pool stays ready.
func (k *reconciler) reportAsleep(ctx context.Context, pool *hypershift.NodePool) error {
	c := newCondition(hypershift.Ready, statusOf(isReadyNow(pool)), Asleep,
		"the control plane sleeps; what is ordered "+
			"is done when it wakes")
	return k.writeStatus(ctx, pool, pool.Status.Replicas, pool.Status.Version, []hypershift.NodePoolCondition{c})
}

// isReadyNow reports whether the pool is ready at its present generation.
func isReadyNow(pool *hypershift.NodePool) bool {
	return slices.ContainsFunc(pool.Status.Conditions, func(c hypershift.NodePoolCondition) bool {
		return c.Type == hypershift.Ready && c.Status == metav1.ConditionTrue && c.ObservedGeneration == pool.Generation
	})
}

// report writes the status of a pool whose nodes are known. status.version changes when all nodes have the new one.
func (k *reconciler) report(ctx context.Context, pool *hypershift.NodePool, conditions []hypershift.NodePoolCondition,
	w wanted, nodes []*node) error {
	available, version := int32(0), w.version
	for _, n := range nodes {
		if n.isReady() && !n.isDraining() {
			available++
		}
		if w.invalid != nil || !w.isCurrent(n) {
			version = pool.Status.Version
		}
	}
	if w.invalid != nil {
		version = pool.Status.Version
	}
	return k.writeStatus(ctx, pool, available, version, conditions)
}

// writeStatus patches the status if it differs. Conditions that are not given stay. The time of a condition changes
// only with its status.
func (k *reconciler) writeStatus(ctx context.Context, pool *hypershift.NodePool, replicas int32, version string,
	conditions []hypershift.NodePoolCondition) error {
	status := hypershift.NodePoolStatus{Replicas: replicas, Version: version, Conditions: slices.Clone(
		pool.Status.Conditions)}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	for _, c := range conditions {
		c.ObservedGeneration, c.LastTransitionTime = pool.Generation, now
		i := slices.IndexFunc(status.Conditions, func(o hypershift.NodePoolCondition) bool { return o.Type == c.Type })
		if i < 0 {
			status.Conditions = append(status.Conditions, c)
			continue
		}
		if status.Conditions[i].Status == c.Status {
			c.LastTransitionTime = status.Conditions[i].LastTransitionTime
		}
		status.Conditions[i] = c
	}
	if equality.Semantic.DeepEqual(status, pool.Status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pool.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = k.client.Resource(hypershift.NodePools()).Namespace(pool.Namespace).Patch(ctx, pool.Name,
		types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !loop.IsGone(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("the status of NodePool %s/%s: %w", pool.Namespace, pool.Name, err)
	}
	return nil
}

func hasFinalizer(object *unstructured.Unstructured) bool {
	return slices.Contains(object.GetFinalizers(), finalizer)
}

// addFinalizer adds hosting's finalizer to a NodePool, so that the NodePool exists until its nodes are removed.
func (k *reconciler) addFinalizer(ctx context.Context, object *unstructured.Unstructured) error {
	return k.setFinalizers(ctx, object, append(slices.Clone(object.GetFinalizers()), finalizer))
}

// finishDeletion removes the machines of a pool that is being deleted. When none is left, it records the deletion in
// the HostedCluster and removes the finalizer. The end of the last machine triggers the pool, which calls it again.
func (k *reconciler) finishDeletion(ctx context.Context, object *unstructured.Unstructured) error {
	if !hasFinalizer(object) {
		return nil
	}
	if !k.removeMachines(localnodes.Pool{Cluster: clusterOf(object), Name: object.GetName()}) {
		return nil
	}
	if err := k.recordDeletion(ctx, object); err != nil {
		return err
	}
	return k.setFinalizers(ctx, object, slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool {
		return f == finalizer
	}))
}

// setFinalizers replaces the finalizers of a NodePool. It fails when the NodePool has changed since it was read.
func (k *reconciler) setFinalizers(ctx context.Context, object *unstructured.Unstructured, list []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": list,
		"resourceVersion": object.GetResourceVersion(), "uid": object.GetUID()}})
	if err != nil {
		return err
	}
	_, err = k.client.Resource(hypershift.NodePools()).Namespace(object.GetNamespace()).Patch(ctx, object.GetName(),
		types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !loop.IsGone(err) {
		return errors.Join(fmt.Errorf("the finalizers of NodePool %s/%s", object.GetNamespace(), object.GetName()), err)
	}
	return nil
}
