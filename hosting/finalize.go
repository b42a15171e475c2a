package hosting

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// finalizer keeps a HostedCluster until nothing of its plane is left.
const finalizer = "hosting.atoll.dev/plane"

// finalize deletes everything of a plane and then removes the finalizer. It is
// called again, by the plane's changes, until that is done.
func (h *Hosting) finalize(ctx context.Context, id controlplane.ID, object *unstructured.Unstructured) error {
	if !slices.Contains(object.GetFinalizers(), finalizer) {
		return nil // finalizers of others keep it
	}
	c := h.cluster(id)
	if !c.partsDeleted {
		if err := h.deleteParts(ctx, id); err != nil {
			return err
		}
		c.partsDeleted = true
	}
	if !c.discarding {
		h.o.Backups.Deleted(id) // the plane's state names the owner of its data now, and is discarded with the plane
	}
	if done, err := h.discard(c); !done || err != nil {
		return err
	}
	if err := h.deleteSecret(ctx, id); err != nil {
		return err
	}
	if err := h.deleteManagedCluster(ctx, id, object); err != nil {
		return err
	}
	h.o.Backups.Deleted(id)
	h.o.Log.Info("plane deleted", "plane", id.String())
	rest := slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return f == finalizer })
	if err := h.setFinalizers(ctx, object, rest); !loop.IsGone(err) {
		return err
	}
	return nil
}

// forget handles a HostedCluster that no longer exists. A plane whose deletion
// was ordered is deleted to its end; any other keeps running, see reportOrphans.
func (h *Hosting) forget(id controlplane.ID) error {
	h.mu.Lock()
	delete(h.seen, id)
	c := h.hosted[id]
	if c == nil {
		h.wakeWaiters() // those of a deleted cluster find that it does not exist
	}
	h.mu.Unlock()
	if c == nil {
		return nil
	}
	if c.discarding {
		_, err := h.discard(c)
		return err
	}
	h.o.Log.Warn("a HostedCluster disappeared without having been finalized; its plane stays", "plane", id.String())
	return nil
}

// discard deletes a cluster's plane, and forgets the cluster once that is done.
func (h *Hosting) discard(c *hostedCluster) (done bool, err error) {
	c.discarding = true
	h.o.Backups.End(c.id)
	h.o.Issuers.Forget(c.id)
	h.mu.Lock()
	c.stopping = true
	h.mu.Unlock()
	if !h.o.Backups.Abandon(c.id) { // a restore would make data in the plane's directory again
		return false, nil
	}
	if done, err := h.o.Planes.Discard(c.id); !done || err != nil {
		return false, err
	}
	h.o.Drills.Forget(c.id) // a drill that ends later finds no plane
	h.mu.Lock()
	delete(h.hosted, c.id)
	for name, holder := range h.names {
		if holder == c.id {
			delete(h.names, name)
		}
	}
	h.wakeWaiters()
	h.mu.Unlock()
	h.publish()
	return true, nil
}

// deleteParts deletes the node pools of a cluster, as HyperShift does, and its
// credentials.
func (h *Hosting) deleteParts(ctx context.Context, id controlplane.ID) error {
	for _, gvr := range []schema.GroupVersionResource{hypershift.NodePools(), apihosting.Credentials()} {
		c := h.o.Client.Resource(gvr).Namespace(id.Namespace)
		list, err := c.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("%s of %s: %w", gvr.Resource, id, err)
		}
		for _, part := range list.Items {
			if name, _, _ := unstructured.NestedString(part.Object, "spec", "clusterName"); name != id.Name {
				continue
			}
			if err := c.Delete(ctx, part.GetName(), metav1.DeleteOptions{}); err != nil && !loop.IsGone(err) {
				return fmt.Errorf("%s %s/%s: %w", gvr.Resource, id.Namespace, part.GetName(), err)
			}
		}
	}
	return nil
}
