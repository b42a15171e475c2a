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

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// sites are the planes whose nodes this process watches.
type sites struct {
	ctx    context.Context // of Run: the watches end with it
	keeper *keeper
	wg     sync.WaitGroup

	mu  sync.Mutex
	all map[controlplane.ID]*site
}

func newSites(ctx context.Context, k *keeper) *sites {
	return &sites{ctx: ctx, keeper: k, all: map[controlplane.ID]*site{}}
}

// open returns the site of a cluster whose plane serves. A new site begins to watch.
func (s *sites) open(cluster controlplane.ID, admin controlplane.Admin) *site {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.all[cluster]; old != nil {
		if old.err == nil && bytes.Equal(old.kubeconfig, admin.Kubeconfig) {
			return old
		}
		old.stop()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	x := &site{cluster: cluster, kubeconfig: admin.Kubeconfig, keeper: s.keeper, stop: cancel, places: map[string]int{},
		joined: map[types.UID]bool{}, joining: map[string]bool{}}
	s.all[cluster] = x
	if x.client, x.err = nodesClient(cluster, admin); x.err != nil {
		return x
	}
	x.nodes = loop.New(loop.Options{Client: x.client, Resource: nodeResource(), Reconcile: x.changed, Workers: 2,
		Bound: nodesBound(), Log: s.keeper.o.Log})
	s.wg.Go(func() { _ = x.nodes.Run(ctx) })
	x.followJoins = func() { s.wg.Go(func() { _ = x.joinLoop().Run(ctx) }) }
	return x
}

// close stops watching a cluster's nodes.
func (s *sites) close(cluster controlplane.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.all[cluster]; x != nil {
		x.stop()
		delete(s.all, cluster)
	}
}

// triggerNodesOf reconciles the nodes of a pool that is not found.
func (s *sites) triggerNodesOf(pool loop.Key) {
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

// wait returns when the watches have ended; the context must have.
func (s *sites) wait() { s.wg.Wait() }

func nodesClient(cluster controlplane.ID, admin controlplane.Admin) (dynamic.Interface, error) {
	config, err := admin.RESTConfig()
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", cluster, err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", cluster, err)
	}
	return client, nil
}

// site is one plane, whose nodes are watched.
type site struct {
	cluster    controlplane.ID
	kubeconfig []byte // that client was made from
	keeper     *keeper
	client     dynamic.Interface
	err        error // why there is no client
	nodes      *loop.Loop
	stop       func()
	// followJoins begins to watch the requests of machines that join. It is called once.
	followJoins func()

	mu     sync.Mutex
	places map[string]int // of created nodes that the watch may not have brought yet

	joined map[types.UID]bool // Nodes with a machine whose bootstrap token was deleted after they joined

	services   netip.Prefix // of the cluster; invalid: not read yet
	advertised string       // the address to which the Service kubernetes leads
	dnsApplied time.Time    // when DNS was applied

	granted bool            // grantKubelets has succeeded
	joins   sync.Once       // starts the loop of requests of machines that join
	joining map[string]bool // names of Nodes of joined machines that the watch may not have brought yet
}

// changed is called for each change of a node.
func (s *site) changed(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration, error) {
	if object == nil {
		s.keeper.triggerPools(s.cluster) // the pool of a deleted node is not known
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
	if s.keeper.pools.Get(pool) != nil && !isForeign(n, s.cluster) {
		s.keeper.pools.Trigger(pool)
		return 0, nil
	}
	end, again, err := s.isRecordedAsDeleted(ctx, pool, n)
	if err != nil || !end {
		return again, err
	}
	s.keeper.o.Log.Info("a node of a deleted pool is removed", "namespace", s.cluster.Namespace, "cluster",
		s.cluster.Name, "node", key.Name)
	now := time.Now()
	if err := s.cordon(ctx, n, now); err != nil {
		return 0, err
	}
	return s.drain(ctx, n, orphanDrain, now)
}

// nodesOf returns a pool's nodes as the watch knows them.
func (s *site) nodesOf(ctx context.Context, pool string) ([]*node, error) {
	if s.err != nil {
		return nil, s.err
	}
	select {
	case <-s.nodes.Synced():
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(waitForPlane):
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

// isNameOf reports whether a Node's name is one that hosting gives to Nodes of a pool. A machine may change the labels
// of its own Node and not its name: one that gives its Node the label of another pool does not displace a node of that.
func isNameOf(cluster controlplane.ID, pool, name string) bool {
	last, ok := strings.CutPrefix(name, strings.TrimPrefix(pool, cluster.Name+"-")+"-")
	return ok && last != "" && !strings.Contains(last, "-")
}

// execute executes a decision. It returns after which time to decide again,
// because it waits for a change that sends no event; 0: never. A *networkFull is
// returned after the rest was executed, because a node that is removed makes room.
func (s *site) execute(ctx context.Context, pool *hypershift.NodePool, w wanted, d decision, nodes []*node,
	now time.Time) (time.Duration, error) {
	for _, n := range nodes {
		if n.Metadata.DeletionTimestamp != nil {
			continue
		}
		adopted, err := s.adopt(ctx, pool, n)
		if err != nil {
			return 0, err
		}
		if w.invalid != nil || adopted { // the watch brings the adopted Node
			continue
		}
		if patch := w.refit(n); patch != nil {
			if err := s.patch(ctx, n, patch); err != nil {
				return 0, err
			}
		}
	}
	var full error
	for _, name := range freeNames(nodePrefix(pool), nodes, d.create) {
		if s.keeper.nameInUse(poolOf(pool), name, nodes) {
			continue // the end of the machine reconciles the pool
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
	for _, n := range d.abandon {
		s.keeper.o.Log.Info("a node that is not ready for long is replaced", "namespace", pool.Namespace, "pool",
			pool.Name, "node", n.Metadata.Name)
		if err := s.remove(ctx, n); err != nil {
			return 0, err
		}
	}
	for _, n := range d.drain { // all, before pods go from one to the next
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

// create creates a node. The node's place in the networks stays reserved until the
// watch has brought the node, and is free again when there will be no such node: the
// networks are full, or the plane refuses it. A refusal does not free the place that
// an earlier try reserved: that try may have created the node, although its answer
// was an error.
func (s *site) create(ctx context.Context, pool *hypershift.NodePool, w wanted, name string) error {
	place, isNew := s.place(w, name)
	object, err := w.build(pool, name, place)
	if err != nil {
		if isNew {
			s.freePlace(name)
		}
		return err
	}
	_, err = s.client.Resource(nodeResource()).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return s.removeStray(ctx, pool, w, name)
	}
	if err != nil {
		if isNew && isRefusal(err) {
			s.freePlace(name)
		}
		return fmt.Errorf("making node %s of %s/%s: %w", name, pool.Namespace, pool.Name, err)
	}
	return nil
}

// removeStray removes a Node that a kubelet has created again, after somebody had deleted it, before its machine ended.
// Such a Node has the provider's id and no label of the pool. Other Nodes stay: the watch is a little behind.
func (s *site) removeStray(ctx context.Context, pool *hypershift.NodePool, w wanted, name string) error {
	if w.provider != cluster.Local {
		return nil
	}
	object, err := s.client.Resource(nodeResource()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node %s of %s: %w", name, s.cluster, err)
	}
	_, isMachine := s.keeper.o.Machines.Of(poolOf(pool))[object.GetUID()]
	id, _, _ := unstructured.NestedString(object.Object, "spec", "providerID")
	if isMachine || object.GetLabels()[hypershift.NodePoolLabel] != "" || id != providerID(pool, w.provider, name) {
		return nil
	}
	n, err := loop.Decode[node](object)
	if err != nil {
		return err
	}
	if err := s.remove(ctx, n); err != nil {
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

// place reserves for a node the lowest free number in the cluster's networks. When an
// earlier try to create the node has reserved a number, it returns that one, and isNew
// is false.
func (s *site) place(w wanted, name string) (at int, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := map[int]bool{}
	for _, key := range s.nodes.Keys() {
		object := s.nodes.Get(key)
		if object == nil {
			continue
		}
		delete(s.places, key.Name)
		pods, _, _ := unstructured.NestedString(object.Object, "spec", "podCIDR")
		if at, ok := placeOf(w.pods, pods); ok {
			taken[at] = true
		}
	}
	if former, reserved := s.places[name]; reserved && !taken[former] {
		return former, false
	}
	for _, at := range s.places {
		taken[at] = true
	}
	for taken[at] {
		at++
	}
	s.places[name] = at
	return at, true
}

// freePlace ends the reservation of a node's place.
func (s *site) freePlace(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.places, name)
}

// patch changes a node. A patch with a resource version fails after another
// change; a node that no longer exists is no error.
func (s *site) patch(ctx context.Context, n *node, patch map[string]any, subresources ...string) error {
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
