package hosting

import (
	"context"
	"crypto/sha256"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/loop"
	"atoll.dev/plane"
)

func kubeconfigSecret(key loop.Key) string { return key.Name + "-admin-kubeconfig" }

// deleteSecret deletes it with the plane. It has an owner, too, for one that
// is written late; but the garbage collector may take half a minute to know a
// kind that is new in the cluster.
func (h *Hosting) deleteSecret(ctx context.Context, key loop.Key) error {
	err := h.o.Client.Resource(secrets()).Namespace(key.Namespace).Delete(ctx, kubeconfigSecret(key),
		metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the kubeconfig of %s: %w", key, err)
	}
	return nil
}

// writeSecret keeps the Secret with the administrator's kubeconfig as the
// plane's own is, but by way of the router.
func (h *Hosting) writeSecret(ctx context.Context, c *cluster, hc *hypershift.HostedCluster, o *observation) error {
	if o.Plane.State != ready {
		return nil
	}
	kubeconfig, err := publicKubeconfig(o.Plane.Config, h.o.Advertise)
	if err != nil {
		return err
	}
	name := kubeconfigSecret(loop.Key{Namespace: hc.Namespace, Name: hc.Name})
	o.Secret = name
	sum := sha256.Sum256(kubeconfig)
	if sum == c.secret {
		return nil
	}
	err = applySecret(ctx, h.o.Client, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
		"metadata": map[string]any{
			"name": name, "namespace": hc.Namespace, "labels": map[string]any{"app.kubernetes.io/managed-by": "atoll"},
			"ownerReferences": []any{owner(hc.TypeMeta, hc.ObjectMeta)},
		},
		"data": map[string]any{"kubeconfig": encode(kubeconfig)},
	})
	if err != nil {
		o.Secret = ""
		return err
	}
	c.secret = sum
	return nil
}

// publicKubeconfig is a plane's administrator's kubeconfig as it works from
// afar: the router's address, and the plane's name for it to go by.
func publicKubeconfig(c plane.Config, advertise string) ([]byte, error) {
	cfg, err := clientcmd.LoadFromFile(c.AdminKubeconfig())
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	for _, cl := range cfg.Clusters {
		cl.Server = "https://" + advertise
		cl.TLSServerName = c.ExternalHosts[0]
	}
	return clientcmd.Write(*cfg)
}
