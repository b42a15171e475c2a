package nodepool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// deletedAnnotation of a HostedCluster records the NodePools whose deletion hosting has seen, as a JSON list of
// deletedPool, the latest last. Nodes that remain of these pools are removed when their plane serves. A NodePool that
// is only not found is not in the list, and its Nodes stay (docs/decisions/137).
const deletedAnnotation = "hosting.atoll.dev/deleted-node-pools"

// maxDeletedPools bounds the list of deletedAnnotation. Nodes that remain of pools beyond it stay until somebody
// deletes them.
const maxDeletedPools = 200

// deletedPool is an entry of deletedAnnotation.
type deletedPool struct {
	Name string    `json:"name"` // of the NodePool
	UID  types.UID `json:"uid"`
}

// deletedPools reads deletedAnnotation. A text that is no such list is an error, so that no Node is removed by mistake.
func deletedPools(hc *unstructured.Unstructured) ([]deletedPool, error) {
	text := hc.GetAnnotations()[deletedAnnotation]
	if text == "" {
		return nil, nil
	}
	var list []deletedPool
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("the annotation %s of HostedCluster %s/%s: %w", deletedAnnotation, hc.GetNamespace(),
			hc.GetName(), err)
	}
	return list, nil
}

// recordDeletion adds a NodePool that is being deleted to the record of its HostedCluster. It may be repeated. A
// HostedCluster that does not exist needs no record: the plane's data is deleted with it.
func (k *reconciler) recordDeletion(ctx context.Context, pool *unstructured.Unstructured) error {
	of := clusterOf(pool)
	if of.Name == "" {
		return nil
	}
	clusters := k.client.Resource(hypershift.HostedClusters()).Namespace(of.Namespace)
	entry := deletedPool{Name: pool.GetName(), UID: pool.GetUID()}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		hc, err := clusters.Get(ctx, of.Name, metav1.GetOptions{})
		if loop.IsGone(err) || err == nil && hc.GetDeletionTimestamp() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		list, err := deletedPools(hc)
		if err != nil || slices.Contains(list, entry) {
			return err
		}
		list = append(list, entry)
		text, err := json.Marshal(list[max(0, len(list)-maxDeletedPools):])
		if err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": hc.GetUID(),
			"resourceVersion": hc.GetResourceVersion(), "annotations": map[string]any{deletedAnnotation: string(text)}}})
		if err != nil {
			return err
		}
		_, err = clusters.Patch(ctx, of.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil && !loop.IsGone(err) {
		return fmt.Errorf("recording the deletion of NodePool %s/%s: %w", pool.GetNamespace(), pool.GetName(), err)
	}
	return nil
}

// isRecordedAsDeleted reports whether a Node whose NodePool the watch does not know must be removed: the Node came with
// the data of another cluster, or its HostedCluster's record has the NodePool. A Node of any other NodePool stays: the
// API server of the management cluster may be young or restored, and may get the NodePool again. again is the time
// after which to call it again; 0: never.
func (s *watchedPlane) isRecordedAsDeleted(ctx context.Context, pool loop.Key, n *node) (mustRemove bool,
	again time.Duration,
	err error) {
	if isForeign(n, s.cluster) {
		return true, 0, nil
	}
	_, err = s.reconciler.client.Resource(hypershift.NodePools()).Namespace(pool.Namespace).Get(ctx, pool.Name,
		metav1.GetOptions{})
	if !loop.IsGone(err) {
		return false, time.Second, err // it exists: the watch will deliver it soon
	}
	hc, err := s.reconciler.client.Resource(hypershift.HostedClusters()).Namespace(s.cluster.Namespace).Get(ctx,
		s.cluster.Name, metav1.GetOptions{})
	if loop.IsGone(err) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, fmt.Errorf("reading HostedCluster %s: %w", s.cluster, err)
	}
	list, err := deletedPools(hc)
	if err != nil {
		return false, 0, err
	}
	of := types.UID(n.Metadata.Annotations[poolUIDAnnotation])
	if slices.ContainsFunc(list, func(d deletedPool) bool {
		return d.UID == of || of == "" && d.Name == pool.Name // earlier versions made Nodes without the UID
	}) {
		return true, 0, nil
	}
	s.reconciler.o.Log.Warn("a node stays although its NodePool is not found, because no deletion of the "+
		"NodePool was seen; if the NodePool does not come back: kubectl delete node", "namespace", pool.Namespace,
		"cluster", s.cluster.Name, "pool", pool.Name, "node", n.Metadata.Name)
	return false, 0, nil
}

// isForeign reports whether a Node was made for a cluster in another namespace. A cluster that was restored from a
// backup of another one has that one's Nodes. Nobody can change spec.providerID of a Node.
func isForeign(n *node, cluster controlplane.ID) bool {
	kind, rest, found := strings.Cut(n.Spec.ProviderID, ":///")
	namespace, _, named := strings.Cut(rest, "/")
	return found && named && strings.HasPrefix(kind, "atoll-") && namespace != cluster.Namespace
}

// setPoolUID writes the UID of a pool into the annotation of a Node that has no UID, or the UID of an earlier pool of
// the same name. It reports whether the Node was changed.
func (s *watchedPlane) setPoolUID(ctx context.Context, pool *hypershift.NodePool, n *node) (changed bool, err error) {
	if n.Metadata.Annotations[poolUIDAnnotation] == string(pool.UID) {
		return false, nil
	}
	err = s.patch(ctx, n, map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{poolUIDAnnotation: string(pool.UID)}}})
	return err == nil, err
}
