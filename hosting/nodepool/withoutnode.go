package nodepool

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/localnodes"
	"atoll.dev/hosting/loop"
)

// removeWithoutNode removes the machines whose Nodes do not exist. A Node that has only lost the label of its pool gets
// it back. An error with one machine does not stop the others.
func (s *watchedPlane) removeWithoutNode(ctx context.Context, pool localnodes.Pool,
	machines map[types.UID]localnodes.Machine, nodes []*node) error {
	exists := map[types.UID]bool{}
	for _, n := range nodes {
		exists[n.Metadata.UID] = true
	}
	var problems []error
	for uid, m := range machines {
		if !exists[uid] && !m.Removing && ctx.Err() == nil {
			problems = append(problems, s.removeUnlessNodeExists(ctx, pool, uid, m.Node))
		}
	}
	return errors.Join(append(problems, ctx.Err())...)
}

// removeUnlessNodeExists removes a machine when the plane has no Node with its UID. A Node that exists gets the label
// of its pool back.
func (s *watchedPlane) removeUnlessNodeExists(ctx context.Context, pool localnodes.Pool, uid types.UID,
	name string) error {
	object, err := s.client.Resource(nodeResource()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil && !loop.IsGone(err):
		return fmt.Errorf("reading node %s of %s: %w", name, s.cluster, err)
	case err == nil && object.GetUID() == uid && object.GetLabels()[hypershift.NodePoolLabel] == pool.Name:
		return nil // the Node exists: the watch has not delivered it yet
	case err == nil && object.GetUID() == uid:
		n := &node{Metadata: metav1.ObjectMeta{Name: name}}
		patch := map[string]any{"metadata": map[string]any{"uid": string(uid), "labels": map[string]any{
			hypershift.NodePoolLabel: pool.Name, providerLabel: string(cluster.Local)}}}
		if err := s.patch(ctx, n, patch); err != nil && !apierrors.IsConflict(err) {
			return err
		}
		return nil
	}
	s.reconciler.o.Machines.Remove(pool, uid)
	return s.deleteToken(ctx, uid)
}

// removeOrphanMachines removes the machines of pools that do not exist, as far as their Nodes do not exist either. An
// error with one pool does not stop the others.
func (s *watchedPlane) removeOrphanMachines(ctx context.Context) error {
	var problems []error
	for _, pool := range s.reconciler.o.Machines.Pools() {
		key := loop.Key{Namespace: pool.Cluster.Namespace, Name: pool.Name}
		if pool.Cluster != s.cluster || s.reconciler.pools.Get(key) != nil {
			continue
		}
		_, err := s.reconciler.client.Resource(hypershift.NodePools()).Namespace(key.Namespace).Get(ctx, key.Name,
			metav1.GetOptions{})
		if !loop.IsGone(err) {
			continue
		}
		nodes, err := s.nodesOf(ctx, pool.Name)
		if err != nil {
			return errors.Join(append(problems, err)...) // that of the plane: no other pool would fare better
		}
		problems = append(problems, s.removeWithoutNode(ctx, pool, s.reconciler.o.Machines.Of(pool), nodes))
	}
	return errors.Join(problems...)
}
