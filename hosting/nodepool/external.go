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
	realnode "atoll.dev/node"
)

// isLost reports whether a Node's machine was admitted and has never run a kubelet. Its Node would keep another machine
// out for ever.
func (w wanted) isLost(n *node) bool {
	return w.provider == cluster.External && !n.draining() && !n.ready() && !n.hasKubelet()
}

// admitMachines lets machines join a pool with the provider external: it gives them their rights in the plane, watches
// their requests, and deletes the tokens of those that have joined.
func (s *site) admitMachines(ctx context.Context, pool *hypershift.NodePool, w wanted, nodes []*node) error {
	if w.provider != cluster.External || len(w.invalid) > 0 || pool.DeletionTimestamp != nil {
		return nil
	}
	services, err := s.serviceNetwork(ctx)
	if err != nil {
		return err
	}
	if err := s.grantOnce(ctx); err != nil {
		return err
	}
	if err := s.advertise(ctx, advertised(services, w.pods, w.machines)); err != nil {
		return err
	}
	s.joins.Do(s.followJoins)
	var problems []error
	for _, n := range nodes {
		id, ok := strings.CutPrefix(n.Metadata.Name, nodePrefix(pool)+"-")
		if ok && n.ready() {
			problems = append(problems, s.deleteTokenOnce(ctx, n.Metadata.UID, invitationSecret(id)))
		}
	}
	return errors.Join(append(problems, s.applyDNS(ctx, time.Now()))...)
}

// grantOnce is grantKubelets, once for each plane that is watched.
func (s *site) grantOnce(ctx context.Context) error {
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

// Limits of what is kept of the requests of one plane. Kubernetes deletes requests after an hour to a day.
const (
	mostRequests = 500
	mostRequest  = 8 << 10 // bytes of one request; a longer one is read as none
)

// joinLoop decides about the requests of machines that join. It has one worker: two machines must not take one place.
func (s *site) joinLoop() *loop.Loop {
	return loop.New(loop.Options{Client: s.client, Resource: requestResource(), Reconcile: s.answerJoin, Workers: 1,
		Bound: &loop.Bound{Selector: realnode.JoinLabel, Most: mostRequests, Trim: trimRequest}, Limit: callLimit,
		Log: s.keeper.o.Log})
}

// trimRequest removes from a request what its decision does not need.
func trimRequest(u *unstructured.Unstructured) {
	u.SetAnnotations(nil)
	unstructured.RemoveNestedField(u.Object, "spec", "extra")
	unstructured.RemoveNestedField(u.Object, "status", "certificate")
	if text, _, _ := unstructured.NestedString(u.Object, "spec", "request"); len(text) > mostRequest {
		unstructured.RemoveNestedField(u.Object, "spec", "request")
	}
}

// answerJoin decides about one request, makes the Node of an admitted machine, and writes the decision.
func (s *site) answerJoin(ctx context.Context, _ loop.Key, object *unstructured.Unstructured) (time.Duration, error) {
	if object == nil {
		return 0, nil
	}
	r, ours := readJoin(object)
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
	s.keeper.o.Log.Info("a machine asks to join", "cluster", s.cluster.String(), "node", r.node, "admitted", d.admit,
		"reason", d.reason)
	return 0, s.writeDecision(ctx, object, d)
}

// joinState reads what decideJoin needs.
func (s *site) joinState(ctx context.Context, r joinRequest) (state joinState, pool *hypershift.NodePool, w wanted,
	err error) {
	// From the watch: requests of a hostile plane must cost the management cluster's API server nothing.
	if err := s.keeper.pools.Ready(ctx); err != nil {
		return state, nil, w, err
	}
	object := s.keeper.pools.Get(loop.Key{Namespace: s.cluster.Namespace, Name: s.cluster.Name + "-" + r.pool})
	if object == nil {
		return state, nil, w, nil
	}
	if pool, err = loop.Decode[hypershift.NodePool](object); err != nil {
		return state, nil, w, err
	}
	hc, err := s.keeper.hostedCluster(ctx, s.cluster.Namespace, s.cluster.Name)
	if err != nil {
		return state, nil, w, err
	}
	if hc == nil || pool.Spec.ClusterName != s.cluster.Name || pool.DeletionTimestamp != nil {
		return state, nil, w, nil
	}
	admin, err := s.keeper.o.Planes.Client(s.cluster)
	if err != nil {
		return state, nil, w, err
	}
	w = read(pool, hc, string(admin.Version))
	w.checkHost(s.keeper.o.Machines)
	_, w.paused = pausedFor(pool, time.Now())
	state = joinState{poolExists: true, provider: w.provider, paused: w.paused, most: w.replicas}
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
func (s *site) bindToken(ctx context.Context, r joinRequest, state joinState) error {
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
		return fmt.Errorf("recording the use of the token of node %s of %s: %w", r.node, s.cluster, err)
	}
	return nil
}

// countJoined counts the machines of a pool that are not leaving, with those that the watch has not brought yet.
func (s *site) countJoined(ctx context.Context, pool *hypershift.NodePool) (int, error) {
	nodes, err := s.nodesOf(ctx, pool.Name)
	if err != nil {
		return 0, err
	}
	count := 0
	seen := map[string]bool{}
	for _, n := range nodes {
		seen[n.Metadata.Name] = true
		if n.Metadata.DeletionTimestamp == nil && !n.draining() && !n.leaving() {
			count++
		}
	}
	for name := range s.joining { // only the one worker of joinLoop uses it
		if seen[name] {
			delete(s.joining, name)
			continue
		}
		object, err := s.client.Resource(nodeResource()).Get(ctx, name, metav1.GetOptions{})
		switch {
		case loop.IsGone(err):
			delete(s.joining, name)
		case err != nil:
			return 0, fmt.Errorf("reading node %s of %s: %w", name, s.cluster, err)
		case object.GetLabels()[hypershift.NodePoolLabel] == pool.Name:
			count++
		}
	}
	return count, nil
}

// createJoined creates the Node of an admitted machine, with its place in the networks and the hash of its key. A Node
// of the name that exists is an error: the next look at it decides.
func (s *site) createJoined(ctx context.Context, pool *hypershift.NodePool, w wanted, r joinRequest) error {
	place, isNew := s.place(w, r.node)
	fail := func(err error) error {
		if isNew && (!apierrors.IsAlreadyExists(err) && isRefusal(err)) {
			s.freePlace(r.node)
		}
		return err
	}
	object, err := w.build(pool, r.node, place)
	if err != nil {
		if isNew {
			s.freePlace(r.node)
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
	s.joining[r.node] = true
	return nil
}

// writeDecision approves or denies a request.
func (s *site) writeDecision(ctx context.Context, request *unstructured.Unstructured, d joinDecision) error {
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
