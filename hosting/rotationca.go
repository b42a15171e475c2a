package hosting

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/api/rotation"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

const (
	nodesRetry = 5 * time.Second // to the next look at the nodes that delay a rotation of the CA
	nodesPage  = 500             // Nodes that are read at once
	nodesShown = 5               // names in a message
	nameShown  = 253             // bytes of a name in a message
	// trustedClients is the ConfigMap in kube-system by which extension API servers verify clients.
	trustedClients, trustedClientsKey = "extension-apiserver-authentication", "client-ca-file"
)

// nodesOfEarlierCA are the real nodes of a plane whose kubelets may have certificates of an earlier CA, or trust only
// that one.
type nodesOfEarlierCA struct {
	Names []string // nodesShown at most
	Count int
}

// waitMessage returns why the plane must not drop the earlier CA yet; "" when it can.
func (n nodesOfEarlierCA) waitMessage() string {
	if n.Count == 0 {
		return ""
	}
	names := strings.Join(n.Names, ", ")
	if more := n.Count - len(n.Names); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return "these nodes have certificates of the earlier CA: " + names + "; hosting replaces local nodes by itself, or " +
		"after kubectl delete node; on a machine of yours, run atoll node leave and atoll node join"
}

// awaitsNodes reports whether the order is to drop an earlier CA that nodes may still need.
func (r orderedRotation) awaitsNodes(last rotation.Order) bool {
	return r.Key == rotation.CAKey && r.Invalid == "" && r.Order.Step == rotation.Complete && last.ID == r.Order.ID &&
		last.Step == rotation.Prepare && (r.Shown == rotation.Prepared || r.Shown == rotation.Completing)
}

// awaitNodes reports whether one of the orders waits for the nodes of an earlier CA.
func awaitNodes(list []orderedRotation, last controlplane.Rotations) bool {
	for _, r := range list {
		if r.awaitsNodes(last.Of(r.Key)) {
			return true
		}
	}
	return false
}

// readNodesOfEarlierCA records in the cluster why a rotation of its CA cannot be completed now; "" for no reason. It
// reads the plane's Nodes only while such an order waits. again is the time to the next call then.
func (h *Hosting) readNodesOfEarlierCA(ctx context.Context, c *hostedCluster, hc *hypershift.HostedCluster) (
	again time.Duration, err error) {
	c.caWaits = ""
	o, err := h.o.Planes.Observe(c.id)
	if err != nil {
		return 0, err
	}
	if !awaitNodes(ordersWithPhases(c, hc), o.LastStart.Rotations) {
		return 0, nil
	}
	admin, err := h.o.Planes.Client(c.id)
	if errors.Is(err, controlplane.ErrNotServing) {
		c.caWaits = "the plane does not serve, so that its nodes cannot be read"
		return nodesRetry, nil
	}
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, agreeLimit)
	defer cancel()
	nodes, err := listNodesOfEarlierCA(ctx, admin)
	if err != nil {
		h.o.Log.Warn("the nodes of a plane were not read; its CA is rotated later", "plane", c.id.String(), "error", err)
		c.caWaits = "the plane's nodes could not be read"
		return nodesRetry, nil
	}
	if c.caWaits = nodes.waitMessage(); c.caWaits == "" {
		return 0, nil
	}
	return nodesRetry, nil
}

// listNodesOfEarlierCA reads the metadata of the plane's Nodes.
func listNodesOfEarlierCA(ctx context.Context, admin controlplane.Admin) (n nodesOfEarlierCA, err error) {
	config, err := admin.RESTConfig()
	if err != nil {
		return n, err
	}
	trust, err := controlplane.ReadTrust(config.CAData)
	if err != nil {
		return n, err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return n, err
	}
	list := metav1.ListOptions{Limit: nodesPage, LabelSelector: controlplane.SimulatedLabel + "!=true"}
	for {
		found, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).List(ctx, list)
		if err != nil {
			return n, fmt.Errorf("reading Nodes: %w", err)
		}
		for _, node := range found.Items {
			if controlplane.CAID(node.Annotations[controlplane.NodeCAAnnotation]) == trust.ID {
				continue
			}
			if n.Count++; len(n.Names) < nodesShown {
				n.Names = append(n.Names, node.Name[:min(len(node.Name), nameShown)]) // the plane may answer anything
			}
		}
		if list.Continue = found.Continue; list.Continue == "" {
			return n, nil
		}
	}
}

// dropEarlierCA removes the CAs that a plane has dropped from the ConfigMap by which extension API servers verify
// clients: the API server only adds to it. The call may be repeated.
func (h *Hosting) dropEarlierCA(ctx context.Context, c *hostedCluster) error {
	admin, err := h.o.Planes.Client(c.id)
	if err != nil {
		return err
	}
	config, err := admin.RESTConfig()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, agreeLimit)
	defer cancel()
	return trustOnly(ctx, config)
}

// trustOnly makes the CAs of a kubeconfig the only ones that extension API servers trust for clients.
func trustOnly(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := client.Resource(configMaps()).Namespace(metav1.NamespaceSystem)
	present, err := maps.Get(ctx, trustedClients, metav1.GetOptions{})
	if loop.IsGone(err) {
		return nil // the API server makes it, with the present CA
	}
	if err != nil {
		return err
	}
	trusted, _, _ := unstructured.NestedString(present.Object, "data", trustedClientsKey)
	if trusted == string(config.CAData) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": present.GetResourceVersion()},
		"data": map[string]any{trustedClientsKey: string(config.CAData)}})
	if err != nil {
		return err
	}
	_, err = maps.Patch(ctx, trustedClients, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
