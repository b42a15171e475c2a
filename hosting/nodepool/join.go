package nodepool

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/hosting/loop"
)

// tokenLifetime is how long a bootstrap token is valid. A kubelet uses it within seconds.
const tokenLifetime = 15 * time.Minute

// fieldManager is the field manager of all objects that hosting applies in a plane.
const fieldManager = "atoll-hosting"

// serviceNetwork returns the network of the cluster's Services, which the plane's first start has fixed.
func (s *watchedPlane) serviceNetwork(ctx context.Context) (netip.Prefix, error) {
	s.mu.Lock()
	known := s.services
	s.mu.Unlock()
	if known.IsValid() {
		return known, nil
	}
	resource := schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"}
	object, err := s.client.Resource(resource).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("reading the network of Services: %w", err)
	}
	cidrs, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "cidrs")
	if len(cidrs) == 0 {
		return netip.Prefix{}, errors.New("the plane has no network of Services")
	}
	network, err := netip.ParsePrefix(cidrs[0])
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("the network of Services: %w", err)
	}
	s.mu.Lock()
	s.services = network
	s.mu.Unlock()
	return network, nil
}

// prepareJoin gives kubelets the rights that they need in the plane, and creates a bootstrap token for one node. A
// holder of the token may join as that node and as no other (package kube/kubelets).
func (s *watchedPlane) prepareJoin(ctx context.Context, n *node) (token string, err error) {
	if err := s.grantKubelets(ctx); err != nil {
		return "", err
	}
	id := tokenID(n.Metadata.UID)
	random := make([]byte, 8)
	_, _ = rand.Read(random) // it never fails
	secret := fmt.Sprintf("%x", random)
	object := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": map[string]any{"name": tokenSecret(n.Metadata.UID), "namespace": "kube-system"},
		"stringData": map[string]any{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"expiration":        time.Now().Add(tokenLifetime).UTC().Format(time.RFC3339),
			"auth-extra-groups": "system:bootstrappers:atoll:node:" + n.Metadata.Name,
			"description":       "lets the node " + n.Metadata.Name + " join",
		},
	}
	if err := s.apply(ctx, secretResource(), "kube-system", object); err != nil {
		return "", err
	}
	return id + "." + secret, nil
}

// grantKubelets gives kubelets and joining machines the rights that they need in the plane.
func (s *watchedPlane) grantKubelets(ctx context.Context) error {
	for _, object := range []map[string]any{
		groupBinding("atoll:node-bootstrapper", "system:bootstrappers", "system:node-bootstrapper"),
		groupBinding("atoll:node-proxier", "system:nodes", "system:node-proxier"),
	} {
		if err := s.apply(ctx, bindingResource(), "", object); err != nil {
			return err
		}
	}
	return nil
}

// tokenID returns the first part of the bootstrap token of a Node. Each Node has one token.
func tokenID(uid types.UID) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(uid)))[:6] }

// tokenSecret returns the name of the Secret of a Node's bootstrap token.
func tokenSecret(uid types.UID) string { return "bootstrap-token-" + tokenID(uid) }

// deleteToken deletes the bootstrap token of a Node from the plane.
func (s *watchedPlane) deleteToken(ctx context.Context, uid types.UID) error {
	s.mu.Lock()
	delete(s.tokenDeleted, uid)
	s.mu.Unlock()
	return s.deleteTokenSecret(ctx, tokenSecret(uid))
}

// deleteTokenSecret deletes the Secret of a bootstrap token from the plane.
func (s *watchedPlane) deleteTokenSecret(ctx context.Context, name string) error {
	err := s.client.Resource(secretResource()).Namespace("kube-system").Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !loop.IsGone(err) {
		return fmt.Errorf("deleting a bootstrap token of %s: %w", s.cluster, err)
	}
	return nil
}

// deleteTokenOnce deletes the Secret with the bootstrap token of a Node that has joined. After a success it does
// nothing for that Node.
func (s *watchedPlane) deleteTokenOnce(ctx context.Context, uid types.UID, secret string) error {
	s.mu.Lock()
	done := s.tokenDeleted[uid]
	s.mu.Unlock()
	if done {
		return nil
	}
	if err := s.deleteTokenSecret(ctx, secret); err != nil {
		return err
	}
	s.mu.Lock()
	// a hostile plane makes and deletes Nodes without end; deleting a token again does no harm
	if len(s.tokenDeleted) >= 2*maxNodes {
		clear(s.tokenDeleted)
	}
	s.tokenDeleted[uid] = true
	s.mu.Unlock()
	return nil
}

// applyAPIServerEndpoint makes the Service kubernetes forward to the address under which pods reach the API server.
func (s *watchedPlane) applyAPIServerEndpoint(ctx context.Context, at string) error {
	s.mu.Lock()
	done := s.endpointApplied == at
	s.mu.Unlock()
	if done {
		return nil
	}
	host, portText, err := net.SplitHostPort(at)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return err
	}
	resource := schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	err = s.apply(ctx, resource, "default", map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": map[string]any{"name": "kubernetes", "namespace": "default", "labels": map[string]any{
			"kubernetes.io/service-name": "kubernetes", "endpointslice.kubernetes.io/managed-by": "hosting.atoll.dev"}},
		"endpoints": []any{map[string]any{"addresses": []any{host}, "conditions": map[string]any{"ready": true}}},
		"ports":     []any{map[string]any{"name": "https", "port": port, "protocol": "TCP"}},
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.endpointApplied = at
	s.mu.Unlock()
	return nil
}

func bindingResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
}

func secretResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
}

// groupBinding returns a ClusterRoleBinding of a group.
func groupBinding(name, group, role string) map[string]any {
	const rbac = "rbac.authorization.k8s.io"
	return map[string]any{
		"apiVersion": rbac + "/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": name},
		"roleRef":  map[string]any{"apiGroup": rbac, "kind": "ClusterRole", "name": role},
		"subjects": []any{map[string]any{"apiGroup": rbac, "kind": "Group", "name": group}},
	}
}

// apply applies an object in the plane.
func (s *watchedPlane) apply(ctx context.Context, resource schema.GroupVersionResource, namespace string,
	object map[string]any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	name := object["metadata"].(map[string]any)["name"].(string)
	force := true
	_, err = s.client.Resource(resource).Namespace(namespace).Patch(ctx, name, types.ApplyPatchType, text,
		metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil {
		return fmt.Errorf("applying %s %s in %s: %w", object["kind"], name, s.cluster, err)
	}
	return nil
}
