package nodepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/loop"
	"atoll.dev/internal/secreterror"
	realnode "atoll.dev/node"
)

// hasNeverRun reports whether a Node's machine of the customer was admitted and has never run a kubelet. The Node
// counts among the pool's machines, so without its removal no other machine could join in its place.
func (w wanted) hasNeverRun(n *node) bool {
	return w.provider == cluster.External && !n.isDraining() && !n.isReady() && !n.hasKubelet()
}

// admitMachines prepares the plane for machines that join a pool with the provider external: it gives them their
// rights, starts the watch of their requests, and deletes the tokens of machines that have joined. It does nothing
// for other pools.
func (s *watchedPlane) admitMachines(ctx context.Context, pool *hypershift.NodePool, w wanted, nodes []*node) error {
	if w.provider != cluster.External || len(w.invalid) > 0 || pool.DeletionTimestamp != nil {
		return nil
	}
	services, err := s.serviceNetwork(ctx)
	if err != nil {
		return err
	}
	if err := s.restrictKubelets(ctx); err != nil {
		return err
	}
	if err := s.grantKubeletsOnce(ctx); err != nil {
		return err
	}
	if err := s.applyAPIServerEndpoint(ctx, advertisedAddress(services, w.pods, w.machines)); err != nil {
		return err
	}
	s.startJoinLoop.Do(s.watchJoinRequests)
	var problems []error
	for _, n := range nodes {
		id, ok := strings.CutPrefix(n.Metadata.Name, nodePrefix(pool)+"-")
		if ok && n.isReady() {
			problems = append(problems, s.deleteTokenOnce(ctx, n.Metadata.UID, invitationSecret(id)))
		}
	}
	return errors.Join(append(problems, s.applyDNS(ctx, time.Now()), s.sweepTokens(ctx, time.Now()))...)
}

// grantKubeletsOnce calls grantKubelets until that has succeeded once for this watched plane.
func (s *watchedPlane) grantKubeletsOnce(ctx context.Context) error {
	s.mu.Lock()
	done := s.granted
	s.mu.Unlock()
	if done {
		return nil
	}
	if err := s.grantKubelets(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.granted = true
	s.mu.Unlock()
	return nil
}

func requestResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}
}

// Limits of the certificate requests of one plane in memory. Kubernetes deletes requests after an hour to a day.
const (
	maxRequests     = 500
	maxRequestBytes = 8 << 10 // bytes of one request; a longer one is taken as empty, and denied
)

// joinLoop returns a loop that decides about the requests of machines that join. It has one worker, so that two
// machines cannot both become a pool's last one.
func (s *watchedPlane) joinLoop() *loop.Loop {
	return loop.New(loop.Options{Client: s.client, Resource: requestResource(), Reconcile: s.reconcileJoinRequest,
		Workers: 1,
		Bound:   &loop.Bound{Selector: realnode.JoinLabel, Most: maxRequests, Trim: trimRequest}, Limit: callTimeout,
		Log: s.reconciler.o.Log})
}

// trimRequest removes from a request what its decision does not need.
func trimRequest(u *unstructured.Unstructured) {
	u.SetAnnotations(nil)
	unstructured.RemoveNestedField(u.Object, "spec", "extra")
	unstructured.RemoveNestedField(u.Object, "status", "certificate")
	if text, _, _ := unstructured.NestedString(u.Object, "spec", "request"); len(text) > maxRequestBytes {
		unstructured.RemoveNestedField(u.Object, "spec", "request")
	}
}

// reconcileJoinRequest decides about the request of a machine, makes the Node of an admitted machine, and writes the
// decision. It ignores requests that are decided, or not those of joining machines.
func (s *watchedPlane) reconcileJoinRequest(ctx context.Context, _ loop.Key,
	object *unstructured.Unstructured) (time.Duration, error) {
	if object == nil {
		return 0, nil
	}
	r, ours := parseJoinRequest(object)
	if !ours {
		return 0, nil
	}
	if r.invalid != "" {
		return 0, s.writeDecision(ctx, object, decideJoin(r, joinState{}))
	}
	state, pool, w, err := s.joinState(ctx, r)
	if err != nil {
		return 0, err
	}
	d := decideJoin(r, state)
	if d.makeNode {
		if err := s.bindToken(ctx, r, state); err != nil {
			return 0, err
		}
		err := s.createJoined(ctx, pool, w, r)
		if full, isFull := errors.AsType[*networkFull](err); isFull {
			d = joinDecision{reason: full.Error()}
		} else if err != nil {
			return 0, err
		}
	}
	s.reconciler.o.Log.Info("a machine asks to join", "cluster", s.cluster.String(), "node", r.node, "admitted", d.admit,
		"reason", d.reason)
	return 0, s.writeDecision(ctx, object, d)
}

// joinState reads the state on which decideJoin decides. pool is nil when the pool does not exist or is being deleted.
func (s *watchedPlane) joinState(ctx context.Context, r joinRequest) (state joinState, pool *hypershift.NodePool,
	w wanted,
	err error) {
	// From the watch: requests of a hostile plane must cost the management cluster's API server nothing.
	if err := s.reconciler.pools.Ready(ctx); err != nil {
		return state, nil, w, err
	}
	object := s.reconciler.pools.Get(loop.Key{Namespace: s.cluster.Namespace, Name: s.cluster.Name + "-" + r.pool})
	if object == nil {
		return state, nil, w, nil
	}
	if pool, err = loop.Decode[hypershift.NodePool](object); err != nil {
		return state, nil, w, err
	}
	hc, err := s.reconciler.hostedCluster(ctx, s.cluster.Namespace, s.cluster.Name)
	if err != nil {
		return state, nil, w, err
	}
	if hc == nil || pool.Spec.ClusterName != s.cluster.Name || pool.DeletionTimestamp != nil {
		return state, nil, w, nil
	}
	admin, err := s.reconciler.o.Planes.Client(s.cluster)
	if err != nil {
		return state, nil, w, err
	}
	w = readSpec(pool, hc, string(admin.Version))
	if w.trust, err = admin.Trust(); err != nil {
		return state, nil, w, err
	}
	w.checkHost(s.reconciler.o.Machines)
	_, w.paused = activePause(pool, time.Now())
	state = joinState{poolExists: true, provider: w.provider, paused: w.paused, maxMachines: w.replicas}
	if len(w.invalid) > 0 {
		state.invalid = w.invalid[0].message
	}
	existing, err := s.client.Resource(nodeResource()).Get(ctx, r.node, metav1.GetOptions{})
	switch {
	case err == nil:
		state.nodeExists, state.nodeKey = true, existing.GetAnnotations()[realnode.KeyAnnotation]
	case !loop.IsGone(err):
		return state, nil, w, fmt.Errorf("reading node %s of %s: %w", r.node, s.cluster, err)
	}
	secret, err := s.client.Resource(secretResource()).Namespace("kube-system").Get(ctx, invitationSecret(r.token),
		metav1.GetOptions{})
	switch {
	case err == nil:
		state.hasToken, state.tokenUID = true, secret.GetUID()
		state.tokenKey = secret.GetAnnotations()[realnode.KeyAnnotation]
	case !loop.IsGone(err):
		return state, nil, w, fmt.Errorf("reading the token of node %s of %s: %w", r.node, s.cluster, err)
	}
	state.joined, err = s.countJoined(ctx, pool)
	return state, pool, w, err
}

// invitationSecret returns the name of the Secret of a bootstrap token.
func invitationSecret(id string) string { return "bootstrap-token-" + id }

// bindToken writes on a token's Secret the hash of the key of the machine that uses the token. So no other machine can
// use the token after the Node was deleted and before the token expires: both would have certificates of one name.
func (s *watchedPlane) bindToken(ctx context.Context, r joinRequest, state joinState) error {
	if state.tokenKey == r.key {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": state.tokenUID,
		"annotations": map[string]any{realnode.KeyAnnotation: r.key}}})
	if err != nil {
		return err
	}
	_, err = s.client.Resource(secretResource()).Namespace("kube-system").Patch(ctx, invitationSecret(r.token),
		types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("recording the use of the token of node %s of %s: %w", r.node, s.cluster,
			secreterror.Hide(err))
	}
	return nil
}

// countJoined counts the machines of a pool that are not leaving, including those whose Nodes the watch has not
// delivered yet.
func (s *watchedPlane) countJoined(ctx context.Context, pool *hypershift.NodePool) (int, error) {
	nodes, err := s.nodesOf(ctx, pool.Name)
	if err != nil {
		return 0, err
	}
	count := 0
	seen := map[string]bool{}
	for _, n := range nodes {
		seen[n.Metadata.Name] = true
		if n.Metadata.DeletionTimestamp == nil && !n.isDraining() && !n.isLeaving() {
			count++
		}
	}
	for name := range s.unseenJoined { // only the one worker of joinLoop uses it
		if seen[name] {
			delete(s.unseenJoined, name)
			continue
		}
		object, err := s.client.Resource(nodeResource()).Get(ctx, name, metav1.GetOptions{})
		switch {
		case loop.IsGone(err):
			delete(s.unseenJoined, name)
		case err != nil:
			return 0, fmt.Errorf("reading node %s of %s: %w", name, s.cluster, err)
		case object.GetLabels()[hypershift.NodePoolLabel] == pool.Name:
			count++
		}
	}
	return count, nil
}

// createJoined creates the Node of an admitted machine, with a realnode.Place and the hash of the machine's key as
// annotations. When a Node of this name exists, createJoined returns an error, and the retried request is decided with
// that Node known.
func (s *watchedPlane) createJoined(ctx context.Context, pool *hypershift.NodePool, w wanted, r joinRequest) error {
	place, isNew := s.reserveIndex(w, r.node)
	fail := func(err error) error {
		if isNew && (!apierrors.IsAlreadyExists(err) && isRefusal(err)) {
			s.freeIndex(r.node)
		}
		return err
	}
	object, err := w.newNode(pool, r.node, place)
	if err != nil {
		if isNew {
			s.freeIndex(r.node)
		}
		return err
	}
	pods, _, _ := unstructured.NestedString(object.Object, "spec", "podCIDR")
	network, toAPIServer, err := s.networkOf(ctx, w, pods)
	if err != nil {
		return fail(err)
	}
	text, err := json.Marshal(realnode.Place{
		ProviderID: providerID(pool, w.provider, r.node), Advertised: toAPIServer, ClusterCIDR: network.ClusterCIDR,
		ServiceCIDR: network.ServiceCIDR, ClusterDNS: network.ClusterDNS, PodCIDR: pods, Address: network.Address,
		CA: string(w.trust.PEM),
	})
	if err != nil {
		return fail(err)
	}
	annotations := object.GetAnnotations()
	annotations[realnode.PlaceAnnotation], annotations[realnode.KeyAnnotation] = string(text), r.key
	object.SetAnnotations(annotations)
	if _, err := s.client.Resource(nodeResource()).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fail(fmt.Errorf("making node %s of %s/%s: %w", r.node, pool.Namespace, pool.Name, err))
	}
	s.unseenJoined[r.node] = true
	return nil
}

// writeDecision approves or denies a request.
func (s *watchedPlane) writeDecision(ctx context.Context, request *unstructured.Unstructured, d joinDecision) error {
	name := request.GetName()
	c := map[string]any{"type": "Approved", "status": "True", "reason": "AtollApprove", "message": d.reason}
	if !d.admit {
		c["type"], c["reason"] = "Denied", "AtollDeny"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": request.GetUID()},
		"status": map[string]any{"conditions": []any{c}}})
	if err != nil {
		return err
	}
	_, err = s.client.Resource(requestResource()).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{},
		"approval")
	if err != nil && !loop.IsGone(err) && !apierrors.IsConflict(err) { // conflict: another request of the name
		return fmt.Errorf("writing the decision about request %s of %s: %w", name, s.cluster, err)
	}
	return nil
}

// isDecided reports whether a request was approved, denied or has failed.
func isDecided(object *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == "Approved" || condition["type"] == "Denied" || condition["type"] == "Failed"
	})
}
