// Package nodepool makes the nodes of hosted clusters: it follows the NodePools of a management cluster and keeps, in
// each customer's plane, as many Nodes as its pools order, with their version, machine type, labels and taints. The
// nodes of most pools are simulated: the plane's own process plays their kubelet (KWOK, see kube/nodes). Those of a
// pool with the provider local are real: each Node gets a machine of package localnodes. Those of a pool with the
// provider external are made when a machine of the customer asks to join, as many as the pool orders. Labels of the
// nodes and a condition of the pool show which they are.
//
// The pure function plan decides, from the ordered pool and the existing Nodes. A
// node is drained before it is removed, when its pool shrinks, changes its version
// or machine type, or is deleted. A changed version or machine type is rolled out
// within the limits of the pool's management.replace; by default with one node
// more than ordered, never with one less. Deleted nodes are made
// again; with auto-repair, a node that is not ready for long is replaced.
//
// Nodes are watched, not polled. No plane is woken: the changes to a sleeping
// plane's nodes are made when it wakes, and the nodes of deleted pools are removed
// then. A pool that is not found deletes nothing: the HostedCluster has a record of
// the pools whose deletion was seen.
//
// Only cli imports it. It reaches the planes by the interface Planes, which hosting
// implements.
package nodepool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/localnodes"
	"atoll.dev/hosting/loop"
)

// Planes are the control planes of this management cluster.
type Planes interface {
	// Client returns the administrator's access to a plane that serves, and the error controlplane.ErrNotServing for
	// any other. It wakes no plane.
	Client(cluster controlplane.ID) (controlplane.Admin, error)
	// SetNodes records how many nodes a pool orders, 0 for a deleted pool.
	SetNodes(cluster controlplane.ID, pool string, replicas int)
}

// Options of Run; Client and Planes are required.
type Options struct {
	Client dynamic.Interface // of the management cluster
	Planes Planes
	// UnhealthyAfter is how long a node may be unready before auto-repair
	// replaces it; default 8 min, as HyperShift's health checks have it.
	UnhealthyAfter time.Duration
	// Patience is how long a pool that is being deleted waits for a plane that does
	// not serve, and for pods that a disruption budget keeps although no other pool
	// can take them. Default 30 s.
	Patience time.Duration
	// Machines run the nodes of pools with the provider local; default: there are none.
	Machines Machines
	// LoadBalancers give Services of clusters with local nodes an address on this machine; default: they have none.
	LoadBalancers LoadBalancers
	// Router is HOST:PORT where this machine reaches the planes by their server names; Machines need it.
	Router  string
	Log     *slog.Logger // default: none
	Observe func(key loop.Key, took time.Duration, err error)
}

const finalizer = "hosting.atoll.dev/nodepool"

// planeRetry is the pause between two checks of a plane that should run and does not serve. A change of its
// HostedCluster may not announce that it serves again.
const planeRetry = time.Second

// listTimeout bounds the wait of a reconciliation for the first list of a plane's nodes.
const listTimeout = 5 * time.Second

// callTimeout bounds one reconciliation, and workersPerCluster bounds the workers that one cluster may occupy. A
// customer's plane may answer slowly or never (a webhook may take half a minute), and other customers must not wait for
// it.
const (
	workers           = 16
	workersPerCluster = 2
	callTimeout       = 30 * time.Second
)

// Run keeps the nodes until ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.UnhealthyAfter == 0 {
		o.UnhealthyAfter = 8 * time.Minute
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Machines == nil {
		o.Machines = noMachines{}
	}
	k := &reconciler{o: o, client: o.Client, notServingSince: map[controlplane.ID]time.Time{},
		counted: map[loop.Key]controlplane.ID{}}
	k.planes = newWatchedPlanes(ctx, k)
	k.pools = loop.New(loop.Options{
		Client: o.Client, Resource: hypershift.NodePools(), Reconcile: k.reconcile,
		Workers: workers, Owner: func(o *unstructured.Unstructured) string { return clusterOf(o).String() },
		Share: workersPerCluster, Limit: callTimeout, MaxBackoff: 5 * time.Second, Log: o.Log, Observe: o.Observe,
	})
	k.clusters = loop.New(loop.Options{Client: o.Client, Resource: hypershift.HostedClusters(),
		Reconcile: k.clusterChanged, Log: o.Log})
	closeMachines, err := o.Machines.Open(ctx, func(p localnodes.Pool) {
		k.pools.Trigger(loop.Key{Namespace: p.Cluster.Namespace, Name: p.Name})
	})
	if err != nil {
		return err
	}
	defer closeMachines()
	var wg sync.WaitGroup
	wg.Go(func() { _ = k.clusters.Run(ctx) })
	wg.Go(func() { _ = k.pools.Run(ctx) })
	wg.Wait()
	k.planes.wait()
	return nil
}

type reconciler struct {
	o        Options
	client   dynamic.Interface
	pools    *loop.Loop
	clusters *loop.Loop
	planes   *watchedPlanes

	mu              sync.Mutex
	notServingSince map[controlplane.ID]time.Time // first observation that a cluster's plane does not serve
	counted         map[loop.Key]controlplane.ID  // pools whose nodes count for a cluster
}

// adminOf returns the administrator's access to a cluster's plane, and false when the plane does not serve.
func (k *reconciler) adminOf(cluster controlplane.ID) (admin controlplane.Admin, serves bool) {
	admin, err := k.o.Planes.Client(cluster)
	if err != nil && !errors.Is(err, controlplane.ErrNotServing) {
		k.o.Log.Warn("a plane's kubeconfig cannot be read", "cluster", cluster.String(), "error", err)
	}
	return admin, err == nil
}

// notServingFor returns the time since this process first saw that a cluster's plane does not serve.
func (k *reconciler) notServingFor(cluster controlplane.ID, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.notServingSince[cluster].IsZero() {
		k.notServingSince[cluster] = now
	}
	return now.Sub(k.notServingSince[cluster])
}

// clearNotServing resets the time of notServingFor: the plane serves, or the cluster is deleted.
func (k *reconciler) clearNotServing(cluster controlplane.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.notServingSince, cluster)
}

// clusterChanged reconciles a cluster's pools after a change of the cluster, and starts or stops the watch of its
// nodes: they are watched while the plane serves.
func (k *reconciler) clusterChanged(_ context.Context, key loop.Key, object *unstructured.Unstructured) (
	time.Duration, error,
) {
	cluster := controlplane.ID(key)
	defer k.triggerPools(cluster)
	if object == nil || object.GetDeletionTimestamp() != nil {
		k.planes.close(cluster)
		k.clearNotServing(cluster)
		return 0, nil
	}
	if admin, serves := k.adminOf(cluster); serves {
		k.planes.open(cluster, admin) // also without a pool: the plane may have nodes of deleted pools
		return 0, nil
	}
	k.planes.close(cluster)
	if power, _, _ := unstructured.NestedString(object.Object, "status", "power"); power == string(hypershift.Asleep) {
		return 0, nil
	}
	return planeRetry, nil
}

// triggerPools reconciles each pool of a cluster.
func (k *reconciler) triggerPools(cluster controlplane.ID) {
	for _, pool := range k.pools.Keys() {
		if pool.Namespace != cluster.Namespace {
			continue
		}
		if object := k.pools.Get(pool); object != nil && clusterOf(object) == cluster {
			k.pools.Trigger(pool)
		}
	}
}

// clusterOf returns the hosted cluster of a NodePool.
func clusterOf(object *unstructured.Unstructured) controlplane.ID {
	name, _, _ := unstructured.NestedString(object.Object, "spec", "clusterName")
	return controlplane.ID{Namespace: object.GetNamespace(), Name: name}
}

func (k *reconciler) reconcile(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (
	time.Duration, error,
) {
	k.countNodes(key, object)
	if object == nil {
		k.planes.triggerNodesOf(key)
		return 0, nil
	}
	pool, err := loop.Decode[hypershift.NodePool](object)
	deleting := object.GetDeletionTimestamp() != nil
	if err != nil {
		if deleting {
			return 0, k.finishDeletion(ctx, object) // the record of deleted pools makes hosting remove its nodes
		}
		k.o.Log.Warn("a NodePool cannot be read and is left alone", "namespace", key.Namespace, "name", key.Name,
			"error", err)
		return 0, nil
	}
	hc, err := k.hostedCluster(ctx, key.Namespace, pool.Spec.ClusterName)
	if err != nil {
		return 0, err
	}
	cluster := controlplane.ID{Namespace: key.Namespace, Name: pool.Spec.ClusterName}
	admin, serves := k.adminOf(cluster)
	asleep := hc != nil && hc.Status.Power == hypershift.Asleep
	now := time.Now()
	patience := k.o.Patience
	switch {
	case serves || hc == nil:
		k.clearNotServing(cluster)
	default:
		patience -= k.notServingFor(cluster, now)
	}
	switch {
	case isHibernated(hc):
		k.o.Machines.Sleep(poolOf(pool))
	}
	switch {
	case deleting && (hc == nil || hc.Status.HasLeft() || !serves && (asleep || patience <= 0)):
		// The plane's data is deleted with the cluster, or another management cluster has it.
		// The nodes of a plane that sleeps, or does not come, are removed by the record when
		// it serves again.
		return 0, k.finishDeletion(ctx, object)
	case deleting && !hasFinalizer(object):
		return 0, nil
	case hc == nil:
		return 0, k.reportWaiting(ctx, pool, ClusterNotFound, fmt.Sprintf("there is no HostedCluster %s",
			pool.Spec.ClusterName))
	case asleep && !serves:
		return 0, k.reportAsleep(ctx, pool)
	case deleting && !serves:
		return patience, nil
	case !serves:
		return 0, k.reportWaiting(ctx, pool, WaitingForControlPlane, "the control plane does not run yet")
	case !deleting && !hasFinalizer(object):
		return 0, k.addFinalizer(ctx, object) // the watch delivers the changed object, which reconciles it
	}
	return k.reconcileNodes(ctx, object, pool, hc, admin, now)
}

// reconcileNodes makes the machines and Nodes of a pool whose plane serves, and reports them. It finishes the deletion
// of a pool without nodes. It returns the time to the next call at the latest; 0: after the next change.
func (k *reconciler) reconcileNodes(ctx context.Context, object *unstructured.Unstructured, pool *hypershift.NodePool,
	hc *hypershift.HostedCluster, admin controlplane.Admin, now time.Time,
) (time.Duration, error) {
	deleting := object.GetDeletionTimestamp() != nil
	cluster := clusterOf(object)
	plane := k.planes.open(cluster, admin)
	nodes, err := plane.nodesOf(ctx, pool.Name)
	if err != nil {
		return 0, k.finishOverdueDeletion(ctx, object, cluster, pool, err)
	}
	w := readSpec(pool, hc, string(admin.Version))
	if w.trust, err = admin.Trust(); err != nil {
		return 0, fmt.Errorf("plane %s: %w", cluster, err)
	}
	w.checkHost(k.o.Machines)
	again, paused := activePause(pool, now)
	w.paused = paused && !deleting
	if deleting {
		w.replicas, w.invalid = 0, nil
		w.drainTimeout = k.deletionDrainTimeout(cluster, pool)
	}
	// Machines first: they run also when the pool's Nodes must not be changed, or cannot.
	more, machinesErr := k.reconcileMachines(ctx, plane, pool, &w, nodes, admin)
	machinesErr = errors.Join(machinesErr, plane.admitMachines(ctx, pool, w, nodes))
	if w.hasRealNodes() {
		more = sooner(more, tokenSweepInterval) // a token that nobody uses changes no Node
	}
	w.awakeSince = awakeSince(k.o.Machines.Of(poolOf(pool)))
	if w.paused {
		return sooner(again, more), errors.Join(machinesErr, k.report(ctx, pool, conditionsOf(pool, w, nodes), w, nodes))
	}
	d := plan(w, nodes, now, k.o.UnhealthyAfter)
	wait, err := plane.execute(ctx, pool, w, d, nodes, now)
	if full, isFull := errors.AsType[*networkFull](err); isFull {
		w.networkFull = full
	} else if err != nil {
		return 0, k.finishOverdueDeletion(ctx, object, cluster, pool, errors.Join(err, machinesErr))
	}
	if deleting && len(nodes) == 0 {
		return 0, k.finishDeletion(ctx, object)
	}
	if !deleting {
		err = errors.Join(err, k.report(ctx, pool, conditionsOf(pool, w, nodes), w, nodes))
	}
	return sooner(sooner(d.again, wait), more), errors.Join(err, machinesErr)
}

// finishOverdueDeletion finishes the deletion of a pool whose drain has had its time, although the plane fails or
// refuses to delete the nodes: a customer's webhook may refuse for ever. The record of deleted pools makes hosting
// remove the nodes as soon as the plane permits that. Otherwise it returns err.
func (k *reconciler) finishOverdueDeletion(ctx context.Context, object *unstructured.Unstructured,
	cluster controlplane.ID,
	pool *hypershift.NodePool, err error) error {
	at := object.GetDeletionTimestamp()
	if at == nil || errors.Is(ctx.Err(), context.Canceled) || time.Since(at.Time) < k.deletionDrainTimeout(cluster, pool) {
		return err
	}
	// with a new time limit: the plane may have used up that of ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
	defer cancel()
	k.o.Log.Warn("a NodePool is deleted although its nodes could not be removed", "namespace", pool.Namespace,
		"name", pool.Name, "error", err)
	return k.finishDeletion(ctx, object)
}

// deletionDrainTimeout returns how long a pool that is being deleted waits for its pods: the time in its spec, else
// orphanDrainTimeout. It is never unlimited, because the deletion of the cluster waits for the pool. Without another
// pool it is only Patience: no pod can move, so no disruption budget can be met.
func (k *reconciler) deletionDrainTimeout(cluster controlplane.ID, pool *hypershift.NodePool) time.Duration {
	if ordered := pool.Spec.NodeDrainTimeout; ordered != nil && ordered.Duration > 0 {
		return ordered.Duration
	}
	for _, other := range k.pools.Keys() {
		if other.Namespace != cluster.Namespace {
			continue
		}
		if object := k.pools.Get(other); object != nil && object.GetDeletionTimestamp() == nil &&
			clusterOf(object) == cluster {
			return orphanDrainTimeout
		}
	}
	return k.o.Patience
}

// sooner returns the shorter of two durations; 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// activePause reports whether spec.pausedUntil pauses the pool now, and for how much longer; 0 when it names no time.
// An invalid spec.pausedUntil does not pause.
func activePause(pool *hypershift.NodePool, now time.Time) (left time.Duration, active bool) {
	if pool.Spec.PausedUntil == nil {
		return 0, false
	}
	pause, err := cluster.ParsePause(*pool.Spec.PausedUntil)
	if err != nil {
		return 0, false
	}
	active, left = pause.At(now)
	return left, active
}

// hostedCluster returns nil when the HostedCluster does not exist or is being
// deleted. It reads the API only when the watch has no copy, because the watch may
// bring a NodePool before its cluster.
func (k *reconciler) hostedCluster(ctx context.Context, namespace, name string) (*hypershift.HostedCluster, error) {
	if name == "" {
		return nil, nil
	}
	object := k.clusters.Get(loop.Key{Namespace: namespace, Name: name})
	if object == nil {
		var err error
		object, err = k.client.Resource(hypershift.HostedClusters()).Namespace(namespace).Get(ctx, name,
			metav1.GetOptions{})
		if loop.IsGone(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading HostedCluster %s/%s: %w", namespace, name, err)
		}
	}
	if object.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	return loop.Decode[hypershift.HostedCluster](object)
}
