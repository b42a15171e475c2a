package credential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/hosting/controlplane"
)

const (
	bindingLabel        = "atoll.dev/credential"
	expiresAnnotation   = "atoll.dev/expires"
	principalAnnotation = "atoll.dev/principal" // who asked for the credential

	rbacGroup = "rbac.authorization.k8s.io"
	adminRole = "cluster-admin"

	// effectEvery and effectLimit are for a new binding's effect: the API server's
	// watch brings the binding within some milliseconds.
	effectEvery = 5 * time.Millisecond
	effectLimit = 5 * time.Second
	// removeLimit is less than callLimit, so that the Credential can be released in
	// the same call.
	removeLimit = 15 * time.Second
)

// bindings are the ClusterRoleBindings of a plane.
type bindings struct{ client dynamic.Interface }

func bindingsOf(admin controlplane.Admin) (bindings, error) {
	config, err := admin.RESTConfig()
	if err != nil {
		return bindings{}, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return bindings{}, err
	}
	return bindings{client}, nil
}

func (b bindings) resource(name string) dynamic.NamespaceableResourceInterface {
	return b.client.Resource(schema.GroupVersionResource{Group: rbacGroup, Version: "v1", Resource: name})
}

// grant makes the binding of a credential. A plane that starts for the first time makes its
// default roles a second or two after it is ready. grant makes cluster-admin itself, as Kubernetes
// has it, and the plane completes it; the binding of another role has an effect when the plane has
// made the role.
func (b bindings) grant(ctx context.Context, w order) error {
	_, err := b.resource("clusterroles").Get(ctx, w.role, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && w.role != adminRole {
		err = nil
	}
	if apierrors.IsNotFound(err) {
		all := []any{"*"}
		_, err = b.resource("clusterroles").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": rbacGroup + "/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": adminRole},
			"rules": []any{map[string]any{"apiGroups": all, "resources": all, "verbs": all},
				map[string]any{"nonResourceURLs": all, "verbs": all}},
		}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("the role of a credential: %w", err)
	}
	_, err = b.resource("clusterrolebindings").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": rbacGroup + "/v1", "kind": "ClusterRoleBinding",
		"metadata": map[string]any{
			"name": w.group, "labels": map[string]any{bindingLabel: "true"},
			"annotations": map[string]any{expiresAnnotation: w.expires.Format(time.RFC3339),
				principalAnnotation: w.principal},
		},
		"roleRef":  map[string]any{"apiGroup": rbacGroup, "kind": "ClusterRole", "name": w.role},
		"subjects": []any{map[string]any{"apiGroup": rbacGroup, "kind": "User", "name": w.user}},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return b.checkRole(ctx, w)
	}
	if err != nil {
		return fmt.Errorf("binding a credential: %w", err)
	}
	return nil
}

// checkRole deletes the binding that is there when it grants another role, and returns an error then: the
// next attempt makes the right one. It accepts the binding that an interrupted attempt made.
func (b bindings) checkRole(ctx context.Context, w order) error {
	have, err := b.resource("clusterrolebindings").Get(ctx, w.group, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading a credential's binding: %w", err)
	}
	if role, _, _ := unstructured.NestedString(have.Object, "roleRef", "name"); role != w.role {
		return errors.Join(fmt.Errorf("a credential's binding granted the role %s instead of %s", role, w.role),
			b.remove(ctx, w.group))
	}
	return nil
}

// probes has for each role a request that it allows and the next weaker role does not.
var probes = map[string]map[string]any{
	adminRole: {"verb": "*", "group": "*", "resource": "*"},
	"edit":    {"verb": "create", "resource": "configmaps"},
	"view":    {"verb": "list", "resource": "configmaps"},
}

// awaitEffect returns when the API server lets the user do what its binding grants.
func (b bindings) awaitEffect(ctx context.Context, w order) error {
	ctx, cancel := context.WithTimeout(ctx, effectLimit)
	defer cancel()
	review := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
		"spec": map[string]any{
			"user": w.user, "groups": []any{w.group}, "resourceAttributes": maps.Clone(probes[w.role]),
		},
	}}
	reviews := b.client.Resource(schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1",
		Resource: "subjectaccessreviews"})
	for {
		answer, err := reviews.Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("asking for a credential's rights: %w", err)
		}
		if allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); allowed {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("a credential's binding has no effect yet")
		case <-time.After(effectEvery):
		}
	}
}

// remove deletes a group's binding in a plane that runs.
func remove(ctx context.Context, admin controlplane.Admin, group string) error {
	b, err := bindingsOf(admin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	return b.remove(ctx, group)
}

func (b bindings) remove(ctx context.Context, group string) error {
	err := b.resource("clusterrolebindings").Delete(ctx, group, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing a credential's binding: %w", err)
	}
	return nil
}

// removeExpired deletes the bindings of credentials that expired while the plane
// slept.
func (b bindings) removeExpired(ctx context.Context, now time.Time) error {
	list, err := b.resource("clusterrolebindings").List(ctx, metav1.ListOptions{LabelSelector: bindingLabel})
	if err != nil {
		return err
	}
	for _, x := range list.Items {
		at, err := time.Parse(time.RFC3339, x.GetAnnotations()[expiresAnnotation])
		if err != nil || now.Before(at) {
			continue
		}
		if err := b.remove(ctx, x.GetName()); err != nil {
			return err
		}
	}
	return nil
}
