package nodepool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// watchedPlanes are the control planes of customers whose nodes this process watches.
type watchedPlanes struct {
	ctx        context.Context // of Run: the watches end with it
	reconciler *reconciler
	wg         sync.WaitGroup

	mu  sync.Mutex
	all map[controlplane.ID]*watchedPlane
}

func newWatchedPlanes(ctx context.Context, k *reconciler) *watchedPlanes {
	return &watchedPlanes{ctx: ctx, reconciler: k, all: map[controlplane.ID]*watchedPlane{}}
}

// open returns the watched plane of a cluster whose plane serves. It starts the watch when there is none, or none with
// this kubeconfig.
func (s *watchedPlanes) open(cluster controlplane.ID, admin controlplane.Admin) *watchedPlane {
	s.mu.Lock()
	defer s.mu.Unlock()
	var former <-chan struct{}
	if old := s.all[cluster]; old != nil {
		if old.err == nil && bytes.Equal(old.kubeconfig, admin.Kubeconfig) {
			return old
		}
		old.stop()
		former = old.servicesEnded
		old.startServices.Do(func() { former = old.formerServices }) // it has no watch of Services, and starts none
	}
	ctx, cancel := context.WithCancel(s.ctx)
	x := &watchedPlane{cluster: cluster, kubeconfig: admin.Kubeconfig, reconciler: s.reconciler, stop: cancel,
		reservedIndexes: map[string]int{},
		tokenDeleted:    map[types.UID]bool{}, unseenJoined: map[string]bool{},
		servicesEnded: make(chan struct{}), formerServices: former}
	s.all[cluster] = x
	if x.client, x.pods, x.err = newPlaneClients(cluster, admin); x.err != nil {
		return x
	}
	x.nodes = loop.New(loop.Options{Client: x.client, Resource: nodeResource(), Reconcile: x.reconcileNode, Workers: 2,
		Bound: nodesBound(), Log: s.reconciler.o.Log})
	s.wg.Go(func() { _ = x.nodes.Run(ctx) })
	x.watchJoinRequests = func() { s.wg.Go(func() { _ = x.joinLoop().Run(ctx) }) }
	x.balanceServices = func() { s.wg.Go(func() { x.watchServices(ctx) }) }
	return x
}

// close stops watching a cluster's nodes.
func (s *watchedPlanes) close(cluster controlplane.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.all[cluster]; x != nil {
		x.stop()
		delete(s.all, cluster)
	}
}

// triggerNodesOf reconciles the nodes of a pool that is not found.
func (s *watchedPlanes) triggerNodesOf(pool loop.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for cluster, x := range s.all {
		if cluster.Namespace != pool.Namespace || x.nodes == nil {
			continue
		}
		for _, key := range x.nodes.Keys() {
			if object := x.nodes.Get(key); object != nil && object.GetLabels()[hypershift.NodePoolLabel] == pool.Name {
				x.nodes.Trigger(key)
			}
		}
	}
}

// wait returns when all watches have ended. They end with the context of Run.
func (s *watchedPlanes) wait() { s.wg.Wait() }

// newPlaneClients returns a client of a plane's objects, and one that reads their metadata only.
func newPlaneClients(cluster controlplane.ID, admin controlplane.Admin) (dynamic.Interface, metadata.Interface, error) {
	config, err := admin.RESTConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("plane %s: %w", cluster, err)
	}
	config.Wrap(limitAnswers)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("plane %s: %w", cluster, err)
	}
	onlyMetadata, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("plane %s: %w", cluster, err)
	}
	return client, onlyMetadata, nil
}

// watchedPlane is the control plane of one cluster while it serves: a client of its API, the watch of its Nodes, and
// what hosting has already done in it.
type watchedPlane struct {
	cluster    controlplane.ID
	kubeconfig []byte // client was made from it
	reconciler *reconciler
	client     dynamic.Interface
	pods       metadata.Interface // reads the metadata of pods
	err        error              // why there are no clients
	nodes      *loop.Loop
	stop       func()
	// watchJoinRequests starts the watch of the requests of machines that join. It may be called once.
	watchJoinRequests func()
	// balanceServices starts the watch of Services of type LoadBalancer. It may be called once.
	balanceServices func()

	mu              sync.Mutex
	reservedIndexes map[string]int // by name, of created Nodes that the watch may not have delivered yet

	tokenDeleted map[types.UID]bool // Nodes with a machine whose bootstrap token was deleted after they joined

	services        netip.Prefix // of the cluster; invalid: not read yet
	endpointApplied string       // the address that applyAPIServerEndpoint has applied
	dnsApplied      time.Time    // when DNS was applied

	granted       bool          // grantKubelets has succeeded
	restricted    bool          // restrictKubelets has succeeded
	tokensSwept   time.Time     // when expired tokens were removed
	startJoinLoop sync.Once     // starts the loop of requests of machines that join
	startServices sync.Once     // starts the watch of Services of type LoadBalancer
	servicesEnded chan struct{} // closed when that watch has ended
	// formerServices is closed when an earlier watch of the cluster's Services has ended; nil: there was none.
	formerServices <-chan struct{}
	unseenJoined   map[string]bool // names of Nodes of admitted machines that the watch may not have delivered yet
}

// reconcileNode is called after each change of a Node. It reconciles the Node's pool, or drains and removes the Node
// of a pool whose deletion is recorded.
func (s *watchedPlane) reconcileNode(ctx context.Context, key loop.Key,
	object *unstructured.Unstructured) (time.Duration, error) {
	if object == nil {
		s.reconciler.triggerPools(s.cluster) // all pools: which one a deleted Node belonged to is not known
		return 0, s.removeOrphanMachines(ctx)
	}
	pool := loop.Key{Namespace: s.cluster.Namespace, Name: object.GetLabels()[hypershift.NodePoolLabel]}
	if pool.Name == "" || object.GetLabels()[simulatedLabel] != "true" && object.GetLabels()[providerLabel] == "" {
		return 0, nil
	}
	n, err := loop.Decode[node](object)
	if err != nil {
		return 0, err
	}
	if s.reconciler.pools.Get(pool) != nil && !isForeign(n, s.cluster) {
		s.reconciler.pools.Trigger(pool)
		return 0, nil
	}
	mustRemove, again, err := s.isRecordedAsDeleted(ctx, pool, n)
	if err != nil || !mustRemove {
		return again, err
	}
	s.reconciler.o.Log.Info("a node of a deleted pool is removed", "namespace", s.cluster.Namespace, "cluster",
		s.cluster.Name, "node", key.Name)
	now := time.Now()
	if err := s.cordon(ctx, n, now); err != nil {
		return 0, err
	}
	return s.drain(ctx, n, orphanDrainTimeout, now)
}

// nodesOf returns a pool's nodes from the watch, without those of other clusters. It waits for the first list at most
// listTimeout.
func (s *watchedPlane) nodesOf(ctx context.Context, pool string) ([]*node, error) {
	if s.err != nil {
		return nil, s.err
	}
	select {
	case <-s.nodes.Synced():
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(listTimeout):
		return nil, errors.New("the plane's nodes have not been listed yet")
	}
	var mine []*node
	for _, key := range s.nodes.Keys() {
		object := s.nodes.Get(key)
		if object == nil || object.GetLabels()[hypershift.NodePoolLabel] != pool ||
			!isNameOf(s.cluster, pool, key.Name) {
			continue
		}
		n, err := loop.Decode[node](object)
		if err != nil {
			return nil, err
		}
		if !isForeign(n, s.cluster) {
			mine = append(mine, n)
		}
	}
	return mine, nil
}

// isNameOf reports whether hosting gives names of this form to Nodes of a pool. A machine may change the labels of
// its own Node, but not the name, so it cannot move its Node into another pool and displace a node there.
func isNameOf(cluster controlplane.ID, pool, name string) bool {
	last, ok := strings.CutPrefix(name, strings.TrimPrefix(pool, cluster.Name+"-")+"-")
	return ok && last != "" && !strings.Contains(last, "-")
}

// execute executes a decision. It returns the time after which to decide again, when a drain waits for something that
// sends no event; 0: never. After a *networkFull it executes the rest before it returns the error, because a removed
// node frees an address.
func (s *watchedPlane) execute(ctx context.Context, pool *hypershift.NodePool, w wanted, d decision, nodes []*node,
	now time.Time) (time.Duration, error) {
	for _, n := range nodes {
		if n.Metadata.DeletionTimestamp != nil {
			continue
		}
		changed, err := s.setPoolUID(ctx, pool, n)
		if err != nil {
			return 0, err
		}
		if w.invalid != nil || changed { // the watch will deliver the changed Node
			continue
		}
		if patch := w.specPatch(n); patch != nil {
			if err := s.patch(ctx, n, patch); err != nil {
				return 0, err
			}
		}
	}
	var full error
	for _, name := range freeNames(nodePrefix(pool), nodes, d.createCount) {
		if s.reconciler.nameInUse(poolOf(pool), name, nodes) {
			continue // the pool is reconciled again when that machine has ended
		}
		err := s.create(ctx, pool, w, name)
		if _, isFull := errors.AsType[*networkFull](err); isFull {
			full = err
			break
		}
		if err != nil {
			return 0, err
		}
	}
	for _, n := range d.inPlace {
		status := map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"kubeletVersion": "v" + w.version,
			"kubeProxyVersion": "v" + w.version}}}
		if err := s.patch(ctx, n, status, "status"); err != nil {
			return 0, err
		}
	}
	for _, n := range d.remove {
		s.reconciler.o.Log.Info("a node whose kubelet does not run is removed without a drain", "namespace",
			pool.Namespace, "pool", pool.Name, "node", n.Metadata.Name)
		if err := s.removeNode(ctx, n); err != nil {
			return 0, err
		}
	}
	for _, n := range d.drain { // cordon all nodes first, so that no pod moves from one of them to another
		if err := s.cordon(ctx, n, now); err != nil {
			return 0, err
		}
	}
	var again time.Duration
	for _, n := range d.drain {
		wait, err := s.drain(ctx, n, w.drainTimeout, now)
		if err != nil {
			return 0, err
		}
		again = sooner(again, wait)
	}
	return again, full
}

// create creates a Node. The index of its addresses stays reserved until the watch has delivered the Node. It is freed
// when the networks are full or the plane refuses the Node. A refusal does not free an index that an earlier try has
// reserved: that try may have created the Node although its answer was an error.
func (s *watchedPlane) create(ctx context.Context, pool *hypershift.NodePool, w wanted, name string) error {
	place, isNew := s.reserveIndex(w, name)
	object, err := w.newNode(pool, name, place)
	if err != nil {
		if isNew {
			s.freeIndex(name)
		}
		return err
	}
	_, err = s.client.Resource(nodeResource()).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return s.removeStray(ctx, pool, w, name)
	}
	if err != nil {
		if isNew && isRefusal(err) {
			s.freeIndex(name)
		}
		return fmt.Errorf("making node %s of %s/%s: %w", name, pool.Namespace, pool.Name, err)
	}
	return nil
}

// removeStray removes a Node that a kubelet has created again, after somebody had deleted it, before its machine
// ended. Such a Node has the provider's id and no label of the pool. Another Node of the name stays: the watch will
// deliver it.
func (s *watchedPlane) removeStray(ctx context.Context, pool *hypershift.NodePool, w wanted, name string) error {
	if w.provider != cluster.Local {
		return nil
	}
	object, err := s.client.Resource(nodeResource()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node %s of %s: %w", name, s.cluster, err)
	}
	_, isMachine := s.reconciler.o.Machines.Of(poolOf(pool))[object.GetUID()]
	id, _, _ := unstructured.NestedString(object.Object, "spec", "providerID")
	if isMachine || object.GetLabels()[hypershift.NodePoolLabel] != "" || id != providerID(pool, w.provider, name) {
		return nil
	}
	n, err := loop.Decode[node](object)
	if err != nil {
		return err
	}
	if err := s.removeNode(ctx, n); err != nil {
		return err
	}
	return fmt.Errorf("node %s of %s was registered by an ended machine and is removed", name, s.cluster)
}

// isRefusal reports whether an API server has answered that it did not create an
// object. After other errors, such as a time-out, the object may exist.
func isRefusal(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && status.ErrStatus.Code >= 400 && status.ErrStatus.Code < 500
}

// reserveIndex reserves for a node the lowest free index in the cluster's networks. When an earlier try to create the
// node has reserved an index, reserveIndex returns that one, and isNew is false.
func (s *watchedPlane) reserveIndex(w wanted, name string) (at int, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := map[int]bool{}
	for _, key := range s.nodes.Keys() {
		object := s.nodes.Get(key)
		if object == nil {
			continue
		}
		delete(s.reservedIndexes, key.Name)
		pods, _, _ := unstructured.NestedString(object.Object, "spec", "podCIDR")
		if at, ok := subnetIndex(w.pods, pods); ok {
			taken[at] = true
		}
	}
	if former, reserved := s.reservedIndexes[name]; reserved && !taken[former] {
		return former, false
	}
	for _, at := range s.reservedIndexes {
		taken[at] = true
	}
	for taken[at] {
		at++
	}
	s.reservedIndexes[name] = at
	return at, true
}

// freeIndex ends the reservation of a node's index.
func (s *watchedPlane) freeIndex(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reservedIndexes, name)
}

// patch changes a Node by a merge patch. A patch with a resource version fails when the Node has changed since. A
// deleted Node is no error.
func (s *watchedPlane) patch(ctx context.Context, n *node, patch map[string]any, subresources ...string) error {
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = s.client.Resource(nodeResource()).Patch(ctx, n.Metadata.Name, types.MergePatchType, text,
		metav1.PatchOptions{}, subresources...)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("changing node %s of %s: %w", n.Metadata.Name, s.cluster, err)
	}
	return nil
}
