// Package nodepool gives hosted clusters their nodes: it follows the NodePools
// of a management cluster and keeps, in each customer's plane, as many Nodes
// as its pools want, of the version, machine type, labels and taints that they
// say. The nodes are simulated: the plane's own process plays their kubelet
// (KWOK, see kube/nodes), and they, and the pool's status, say so.
//
// What is to be done is a pure function, plan, of what is wanted and the Nodes
// that there are. A pool that shrinks, changes its version or machine type, or
// goes, drains a node before it removes it; a changed version or machine type
// is rolled out with one node more than wanted, never with one less. Nodes
// that were deleted come back; with auto-repair, those that are not ready for
// long are replaced.
//
// Nodes are watched, not asked for. No plane is woken: what a pool wants of
// one that sleeps is done when it wakes, and nodes whose pool has gone
// meanwhile go then.
//
// Only cli imports it; what it needs of hosting is the interface Planes.
package nodepool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/loop"
	"atoll.dev/plane"
)

// Planes are the control planes of this management cluster.
type Planes interface {
	// Plane returns the plane of a HostedCluster; false when it does not run.
	Plane(namespace, name string) (plane.Config, bool)
}

// Options of Run; Client and Planes are required.
type Options struct {
	Client dynamic.Interface // of the management cluster
	Planes Planes
	// UnhealthyAfter is how long a node may be unready before auto-repair
	// replaces it; default 8 min, as HyperShift's health checks have it.
	UnhealthyAfter time.Duration
	// Patience is how long a pool that is being deleted waits for what may never
	// come: a plane that is away, and pods that must not go although there is no
	// other pool for them. Default 30 s.
	Patience time.Duration
	Log      *slog.Logger // default: none
	Observe  func(key loop.Key, took time.Duration, err error)
}

const finalizer = "hosting.atoll.dev/nodepool"

// lookEvery is how often a plane is looked for that should run and does not: a
// plane that comes back may have nothing new to say about its HostedCluster.
const lookEvery = time.Second

// waitForPlane is how long a call waits for a plane's nodes to be listed.
const waitForPlane = 5 * time.Second

// callLimit is how long one call may take, and share how many of one cluster
// there are at once: what a plane answers, and when, is its customer's affair
// (a webhook may take half a minute), and nobody else shall wait for it.
const (
	workers   = 16
	share     = 2
	callLimit = 30 * time.Second
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
	k := &keeper{o: o, client: o.Client, away: map[loop.Key]time.Time{}}
	k.sites = newSites(ctx, k)
	k.pools = loop.New(loop.Options{
		Client: o.Client, Resource: hypershift.NodePools(), Reconcile: k.reconcile,
		Workers: workers, Owner: clusterOf, Share: share, Limit: callLimit, MaxBackoff: 5 * time.Second, Log: o.Log, Observe: o.Observe,
	})
	k.clusters = loop.New(loop.Options{Client: o.Client, Resource: hypershift.HostedClusters(),
		Reconcile: k.clusterChanged, Log: o.Log})
	var wg sync.WaitGroup
	wg.Go(func() { _ = k.clusters.Run(ctx) })
	wg.Go(func() { _ = k.pools.Run(ctx) })
	wg.Wait()
	k.sites.wait()
	return nil
}

type keeper struct {
	o        Options
	client   dynamic.Interface
	pools    *loop.Loop
	clusters *loop.Loop
	sites    *sites

	mu   sync.Mutex
	away map[loop.Key]time.Time // clusters whose plane does not run, and since when that is known
}

// awayFor is how long it is known that a cluster's plane does not run.
func (k *keeper) awayFor(cluster loop.Key, running bool, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if running {
		delete(k.away, cluster)
		return 0
	}
	if k.away[cluster].IsZero() {
		k.away[cluster] = now
	}
	return now.Sub(k.away[cluster])
}

// clusterChanged looks at a cluster's pools again, and stops watching the
// nodes of a plane that does not run.
func (k *keeper) clusterChanged(_ context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration,
	error) {
	defer k.triggerPools(key)
	config, running := k.o.Planes.Plane(key.Namespace, key.Name)
	if object == nil || object.GetDeletionTimestamp() != nil {
		k.sites.close(key)
		k.awayFor(key, true, time.Now()) // nobody waits for it
		return 0, nil
	}
	if running {
		k.sites.open(key, config) // orphans are seen even when there is no pool
		return 0, nil
	}
	k.sites.close(key)
	if power, _, _ := unstructured.NestedString(object.Object, "status", "power"); power == string(hypershift.Asleep) {
		return 0, nil
	}
	return lookEvery, nil
}

// triggerPools asks for a call for each pool of a cluster.
func (k *keeper) triggerPools(cluster loop.Key) {
	for _, pool := range k.pools.Keys() {
		if pool.Namespace != cluster.Namespace {
			continue
		}
		object := k.pools.Get(pool)
		if object == nil {
			continue
		}
		if clusterOf(object) == cluster.String() {
			k.pools.Trigger(pool)
		}
	}
}

// clusterOf names the hosted cluster of a NodePool, as its key does.
func clusterOf(object *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(object.Object, "spec", "clusterName")
	return loop.Key{Namespace: object.GetNamespace(), Name: name}.String()
}

func (k *keeper) reconcile(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration,
	error) {
	if object == nil {
		k.sites.orphaned(key)
		return 0, nil
	}
	pool, err := loop.Decode[hypershift.NodePool](object)
	deleting := object.GetDeletionTimestamp() != nil
	if err != nil {
		if deleting {
			return 0, k.release(ctx, object) // its nodes are nobody's then, and go
		}
		k.o.Log.Warn("a NodePool cannot be read and is left alone", "namespace", key.Namespace, "name", key.Name,
			"error", err)
		return 0, nil
	}
	hc, err := k.hostedCluster(ctx, key.Namespace, pool.Spec.ClusterName)
	if err != nil {
		return 0, err
	}
	cluster := loop.Key{Namespace: key.Namespace, Name: pool.Spec.ClusterName}
	config, running := k.o.Planes.Plane(cluster.Namespace, cluster.Name)
	asleep := hc != nil && hc.Status.Power == hypershift.Asleep
	now := time.Now()
	patience := k.o.Patience
	if hc != nil {
		patience -= k.awayFor(cluster, running, now)
	}
	switch {
	case deleting && (hc == nil || !running && (asleep || patience <= 0)):
		// With the cluster everything goes; the nodes of a plane that sleeps, or
		// does not come, go when it is there.
		return 0, k.release(ctx, object)
	case deleting && !held(object):
		return 0, nil
	case hc == nil:
		return 0, k.reportWaiting(ctx, pool, ClusterNotFound, fmt.Sprintf("there is no HostedCluster %s",
			pool.Spec.ClusterName))
	case asleep && !running:
		return 0, k.reportAsleep(ctx, pool)
	case deleting && !running:
		return patience, nil
	case !running:
		return 0, k.reportWaiting(ctx, pool, WaitingForControlPlane, "the control plane does not run yet")
	case !deleting && !held(object):
		return 0, k.hold(ctx, object) // what is held comes back by the watch
	}

	site := k.sites.open(cluster, config)
	nodes, err := site.nodesOf(ctx, key.Name)
	if err != nil {
		return 0, k.orRelease(ctx, object, cluster, pool, err)
	}
	w := read(pool, hc, site.version())
	again, paused := pausedFor(pool, now)
	if paused && !deleting {
		return again, k.report(ctx, pool, conditionsOf(pool, w, nodes, true), w, nodes)
	}
	if deleting {
		w.replicas, w.invalid = 0, nil
		w.drainTimeout = k.lastDrain(cluster, pool)
	}
	d := plan(w, nodes, now, k.o.UnhealthyAfter)
	wait, err := site.do(ctx, pool, w, d, nodes, now)
	if err != nil {
		return 0, k.orRelease(ctx, object, cluster, pool, err)
	}
	if deleting && len(nodes) == 0 {
		return 0, k.release(ctx, object)
	}
	if !deleting {
		if err := k.report(ctx, pool, conditionsOf(pool, w, nodes, false), w, nodes); err != nil {
			return 0, err
		}
	}
	return sooner(d.again, wait), nil
}

// orRelease lets a pool go that is being deleted for longer than its drain may
// take, although its plane fails or refuses to end its nodes: a webhook of the
// customer's may, for ever. They are nobody's then, and go when they can.
func (k *keeper) orRelease(ctx context.Context, object *unstructured.Unstructured, cluster loop.Key,
	pool *hypershift.NodePool, err error) error {
	at := object.GetDeletionTimestamp()
	if at == nil || errors.Is(ctx.Err(), context.Canceled) || time.Since(at.Time) < k.lastDrain(cluster, pool) {
		return err
	}
	// the plane may have taken the call's time
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitForPlane)
	defer cancel()
	k.o.Log.Warn("a NodePool is let go whose nodes could not be ended", "namespace", pool.Namespace, "name", pool.Name,
		"error", err)
	return k.release(ctx, object)
}

// lastDrain is how long a pool that is deleted waits for its pods: as long as
// it says, and not for ever, since its cluster's end waits for it. When no other
// pool stays, no pod has anywhere to go, and what a disruption budget asks for
// never comes.
func (k *keeper) lastDrain(cluster loop.Key, pool *hypershift.NodePool) time.Duration {
	if said := pool.Spec.NodeDrainTimeout; said != nil && said.Duration > 0 {
		return said.Duration
	}
	for _, other := range k.pools.Keys() {
		if other.Namespace != cluster.Namespace {
			continue
		}
		if object := k.pools.Get(other); object != nil && object.GetDeletionTimestamp() == nil &&
			clusterOf(object) == cluster.String() {
			return orphanDrain
		}
	}
	return k.o.Patience
}

// sooner returns the shorter of two times, of which 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// pausedFor says whether the pool is to be left alone, and for how long if
// that is known.
func pausedFor(pool *hypershift.NodePool, now time.Time) (time.Duration, bool) {
	if pool.Spec.PausedUntil == nil {
		return 0, false
	}
	if *pool.Spec.PausedUntil == "true" {
		return 0, true
	}
	until, err := time.Parse(time.RFC3339, *pool.Spec.PausedUntil)
	if err != nil || !now.Before(until) {
		return 0, false
	}
	return until.Sub(now), true
}

// hostedCluster returns nil when there is none, or none for long. It reads
// the watch's copy and asks only when there is none, because a NodePool may be
// known before its cluster.
func (k *keeper) hostedCluster(ctx context.Context, namespace, name string) (*hypershift.HostedCluster, error) {
	if name == "" {
		return nil, nil
	}
	object := k.clusters.Get(loop.Key{Namespace: namespace, Name: name})
	if object == nil {
		var err error
		object, err = k.client.Resource(hypershift.HostedClusters()).Namespace(namespace).Get(ctx, name,
			metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
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
