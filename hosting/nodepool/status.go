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
		case n.draining() || n.Metadata.DeletionTimestamp != nil:
			leaving++
			continue
		case n.ready():
			ready++
		}
		if w.invalid == nil && !w.current(n) {
			outdated++
		}
	}
	live := len(nodes) - leaving
	conditions := []hypershift.NodePoolCondition{
		newCondition(hypershift.AutoscalingEnabled, statusOf(pool.Spec.AutoScaling != nil), AsExpected, autoscaling(pool)),
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
		simulation(w.provider),
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
		set(hypershift.AllMachinesReady, WaitingForMachines, w.countJoined(live))
	case live < w.replicas:
		set(hypershift.AllMachinesReady, ScalingUp, fmt.Sprintf("%d of %d nodes are there", live, w.replicas))
	}
	if w.full != nil && live < w.replicas {
		set(hypershift.AllMachinesReady, NetworkFull, w.full.Error())
	}
	if ready < live {
		set(hypershift.AllNodesHealthy, NodesNotReady, w.countReady(ready, live))
	}
	return append(conditions, readiness(w, live, ready, outdated, leaving))
}

// simulation is the condition that tells real nodes from simulated ones.
func simulation(provider cluster.NodeProvider) hypershift.NodePoolCondition {
	if provider == cluster.External {
		return newCondition(Simulated, metav1.ConditionFalse, "External", "the nodes run on machines of the customer")
	}
	if provider == cluster.Local {
		return newCondition(Simulated, metav1.ConditionFalse, "Local", "the nodes run on the management cluster's machine")
	}
	return newCondition(Simulated, metav1.ConditionTrue, "KWOK", "the nodes are simulated: pods are scheduled and said "+
		"to run, nothing is executed")
}

// countReady says how many nodes are ready, and why a machine does not run.
func (w wanted) countReady(ready, live int) string {
	text := fmt.Sprintf("%d of %d nodes are ready", ready, live)
	if w.trouble != "" {
		text += "; " + w.trouble
	}
	return text
}

// readiness computes the condition Ready: the pool is as its spec orders.
func readiness(w wanted, live, ready, outdated, leaving int) hypershift.NodePoolCondition {
	no := func(reason, message string) hypershift.NodePoolCondition {
		return newCondition(hypershift.Ready, metav1.ConditionFalse, reason, message)
	}
	switch {
	case len(w.invalid) > 0:
		return no(w.invalid[0].reason, w.invalid[0].message)
	case w.full != nil:
		return no(NetworkFull, w.full.Error())
	case live < w.replicas && w.provider != cluster.External:
		return no(ScalingUp, fmt.Sprintf("%d of %d nodes are there", live, w.replicas))
	case ready < live:
		return no(NodesNotReady, w.countReady(ready, live))
	case outdated > 0:
		return no(UpdatingNodes, fmt.Sprintf("%d nodes are still as they were before", outdated))
	case live > w.replicas || leaving > 0:
		return no(ScalingDown, fmt.Sprintf("%d nodes are being drained", live-w.replicas+leaving))
	}
	if live < w.replicas { // of an external pool: a region cannot wait for machines that it does not make
		return newCondition(hypershift.Ready, metav1.ConditionTrue, AsExpected, w.countJoined(live))
	}
	return newCondition(hypershift.Ready, metav1.ConditionTrue, AsExpected, "")
}

// countJoined says how many machines of the customer have joined, of those that may.
func (w wanted) countJoined(joined int) string {
	return fmt.Sprintf("%d of %d machines have joined; for another one: atoll nodepool join-token", joined, w.replicas)
}

func autoscaling(pool *hypershift.NodePool) string {
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

// reportWaiting reports why the pool waits. A pool that was ready at this
// generation stays ready: a plane that does not serve for a moment changes nothing
// about its nodes.
func (k *keeper) reportWaiting(ctx context.Context, pool *hypershift.NodePool, reason, message string) error {
	if reason != ClusterNotFound && readyNow(pool) {
		return nil
	}
	return k.write(ctx, pool, pool.Status.Replicas, pool.Status.Version, []hypershift.NodePoolCondition{
		newCondition(hypershift.Ready, metav1.ConditionFalse, reason, message)})
}

// reportAsleep reports that the plane sleeps. A ready pool stays ready.
func (k *keeper) reportAsleep(ctx context.Context, pool *hypershift.NodePool) error {
	c := newCondition(hypershift.Ready, statusOf(readyNow(pool)), Asleep, "the control plane sleeps; what is ordered "+
		"is done when it wakes")
	return k.write(ctx, pool, pool.Status.Replicas, pool.Status.Version, []hypershift.NodePoolCondition{c})
}

// readyNow reports whether the pool is ready at its present generation.
func readyNow(pool *hypershift.NodePool) bool {
	return slices.ContainsFunc(pool.Status.Conditions, func(c hypershift.NodePoolCondition) bool {
		return c.Type == hypershift.Ready && c.Status == metav1.ConditionTrue && c.ObservedGeneration == pool.Generation
	})
}

// report writes the status of a pool whose nodes are known. The version is that of
// all nodes; while they differ, the earlier version stays.
func (k *keeper) report(ctx context.Context, pool *hypershift.NodePool, conditions []hypershift.NodePoolCondition,
	w wanted, nodes []*node) error {
	available, version := int32(0), w.version
	for _, n := range nodes {
		if n.ready() && !n.draining() {
			available++
		}
		if w.invalid != nil || !w.current(n) {
			version = pool.Status.Version
		}
	}
	if w.invalid != nil {
		version = pool.Status.Version
	}
	return k.write(ctx, pool, available, version, conditions)
}

// write patches the status if it differs. Conditions that are not given stay; a
// condition keeps its time as long as its status.
func (k *keeper) write(ctx context.Context, pool *hypershift.NodePool, replicas int32, version string,
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

func isHeld(object *unstructured.Unstructured) bool {
	return slices.Contains(object.GetFinalizers(), finalizer)
}

// holdPool adds the finalizer, which keeps the NodePool until its nodes are removed.
func (k *keeper) holdPool(ctx context.Context, object *unstructured.Unstructured) error {
	return k.finalizers(ctx, object, append(slices.Clone(object.GetFinalizers()), finalizer))
}

// releasePool records that the pool is deleted and removes the finalizer, when the pool has no machine. The end of the
// last machine reconciles the pool again.
func (k *keeper) releasePool(ctx context.Context, object *unstructured.Unstructured) error {
	if !isHeld(object) {
		return nil
	}
	if !k.endMachines(localnodes.Pool{Cluster: clusterOf(object), Name: object.GetName()}) {
		return nil
	}
	if err := k.recordDeletion(ctx, object); err != nil {
		return err
	}
	return k.finalizers(ctx, object, slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool {
		return f == finalizer
	}))
}

// finalizers replaces the list of an object that has not changed since it was read.
func (k *keeper) finalizers(ctx context.Context, object *unstructured.Unstructured, list []string) error {
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
