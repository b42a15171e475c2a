package hosting

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/internal/secreterror"
)

func kubeconfigSecret(id controlplane.ID) string { return id.Name + "-admin-kubeconfig" }

// deleteSecret deletes the Secret with the administrator's kubeconfig. The Secret
// has an owner, too, but the garbage collector may take half a minute to learn a
// kind that is new in the management cluster. A Secret that hosting may not delete
// stays: somebody has made it again, for example from a backup of the management
// cluster, and the HostedCluster must not stay because of it.
func (h *Hosting) deleteSecret(ctx context.Context, id controlplane.ID) error {
	secrets := h.o.Client.Resource(secrets()).Namespace(id.Namespace)
	err := secrets.Delete(ctx, kubeconfigSecret(id), metav1.DeleteOptions{})
	if apierrors.IsForbidden(err) {
		h.o.Log.Warn("hosting may not delete the Secret of a deleted cluster, which stays", "plane", id.String(),
			"secret", kubeconfigSecret(id), "error", secreterror.Hide(err))
		return nil
	}
	if err != nil && !loop.IsGone(err) {
		return fmt.Errorf("the kubeconfig of %s: %w", id, secreterror.Hide(err))
	}
	return nil
}

// writeSecret writes the Secret with the administrator's kubeconfig, for the way
// through the router, when the plane is ready and the Secret differs. It sets
// r.Secret once the Secret is written.
func (h *Hosting) writeSecret(ctx context.Context, c *hostedCluster, hc *hypershift.HostedCluster, r *report) error {
	if r.Plane.State != controlplane.Ready {
		return nil
	}
	admin, err := h.o.Planes.Client(c.id)
	if errors.Is(err, controlplane.ErrNotServing) {
		return nil // it stopped since it was observed; its next change comes here again
	}
	if err != nil {
		return err
	}
	kubeconfig, err := publicKubeconfig(admin, h.o.Advertise)
	if err != nil {
		return fmt.Errorf("plane %s: %w", c.id, err)
	}
	name := kubeconfigSecret(c.id)
	r.Secret = name
	sum := sha256.Sum256(kubeconfig)
	if sum == c.secret {
		return nil
	}
	err = applySecret(ctx, h.o.Client, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
		"metadata": map[string]any{
			"name": name, "namespace": hc.Namespace, "labels": map[string]any{"app.kubernetes.io/managed-by": "atoll"},
			"ownerReferences": []any{ownerReference(hc.TypeMeta, hc.ObjectMeta)},
		},
		"data": map[string]any{"kubeconfig": encode(kubeconfig)},
	})
	if err != nil {
		r.Secret = ""
		return err
	}
	c.secret = sum
	return nil
}

// publicKubeconfig is a plane's administrator's kubeconfig for customers: with the
// router's address, and the server name by which the router finds the plane.
func publicKubeconfig(admin controlplane.Admin, advertise string) ([]byte, error) {
	config, err := clientcmd.Load(admin.Kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, c := range config.Clusters {
		c.Server = "https://" + advertise
		c.TLSServerName = admin.ServerName
	}
	return clientcmd.Write(*config)
}
