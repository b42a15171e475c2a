package credential

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

func resourceOf(c dynamic.Interface, group, resource string) dynamic.NamespaceableResourceInterface {
	return c.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource})
}

// configMap is an object that edit may create, and view may not.
func configMap(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name}}}
}

// A role allows what Kubernetes says, from the moment at which the certificate is published.
func TestACredentialHasItsRole(t *testing.T) {
	w := newWorld(t, "roles")
	for role, can := range map[string]struct{ list, readSecrets, create, bind bool }{
		"view":  {list: true},
		"edit":  {list: true, readSecrets: true, create: true},
		"admin": {list: true, readSecrets: true, create: true, bind: true},
	} {
		id := "role-" + role + "-" + w.namespace
		key := w.order(id, func(s map[string]any) { s["role"] = role })
		user := client(t, config(t, w.await(id, "AsExpected"), key))
		ctx := t.Context()
		_, list := resourceOf(user, "", "configmaps").Namespace(w.namespace).List(ctx, metav1.ListOptions{})
		_, secrets := resourceOf(user, "", "secrets").Namespace(w.namespace).List(ctx, metav1.ListOptions{})
		_, create := resourceOf(user, "", "configmaps").Namespace(w.namespace).Create(ctx, configMap(role),
			metav1.CreateOptions{})
		bind := bindUser(ctx, user, "of-"+id, "system:discovery", "somebody")
		for what, got := range map[string]struct {
			err     error
			allowed bool
		}{"list": {list, can.list}, "read Secrets": {secrets, can.readSecrets}, "create": {create, can.create},
			"bind": {bind, can.bind}} {
			if (got.err == nil) != got.allowed || got.err != nil && !apierrors.IsForbidden(got.err) {
				t.Errorf("%s: %s: %v", role, what, got.err)
			}
		}
	}
	// A binding that grants another role than the Credential orders, for example of an older order, is replaced.
	id := "replaced-" + w.namespace
	if err := (bindings{w.admin}).grant(t.Context(), order{user: "atoll:credential:" + id,
		group: "atoll:credential:" + id, role: adminRole}); err != nil {
		t.Fatal(err)
	}
	key := w.order(id, func(s map[string]any) { s["role"] = "view" })
	user := client(t, config(t, w.await(id, "AsExpected"), key))
	w.eventually("the end of the other role", func() error {
		if _, err := resourceOf(user, "", "secrets").Namespace(w.namespace).List(t.Context(),
			metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("view reads Secrets: %v", err)
		}
		return nil
	})
}

// bindUser binds a user to a ClusterRole in the whole plane.
func bindUser(ctx context.Context, with dynamic.Interface, name, role, user string) error {
	_, err := resourceOf(with, rbacGroup, "clusterrolebindings").Create(ctx, &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": rbacGroup + "/v1", "kind": "ClusterRoleBinding",
			"metadata": map[string]any{"name": name},
			"roleRef":  map[string]any{"apiGroup": rbacGroup, "kind": "ClusterRole", "name": role},
			"subjects": []any{
				map[string]any{"apiGroup": rbacGroup, "kind": "User", "name": user},
				map[string]any{"apiGroup": rbacGroup, "kind": "Group", "name": user},
				map[string]any{"apiGroup": rbacGroup, "kind": "User", "name": "kept-of-" + name},
			}}}, metav1.CreateOptions{})
	return err
}

// A holder who binds itself again before its revocation keeps nothing; another credential of the same principal, and
// the other subjects of these bindings, keep everything.
func TestARevocationEndsEveryBindingOfItsCredentialAndNoOther(t *testing.T) {
	w := newWorld(t, "revoked")
	id, other := "one-"+w.namespace, "two-"+w.namespace
	key, otherKey := w.order(id, nil), w.order(other, nil)
	holder := client(t, config(t, w.await(id, "AsExpected"), key))
	second := client(t, config(t, w.await(other, "AsExpected"), otherKey))
	user := "atoll:credential:" + id
	if err := bindUser(t.Context(), holder, "again-"+w.namespace, adminRole, user); err != nil {
		t.Fatal(err)
	}
	if _, err := resourceOf(holder, rbacGroup, "rolebindings").Namespace(w.namespace).Create(t.Context(),
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": rbacGroup + "/v1", "kind": "RoleBinding",
			"metadata": map[string]any{"name": "again"},
			"roleRef":  map[string]any{"apiGroup": rbacGroup, "kind": "ClusterRole", "name": "admin"},
			"subjects": []any{map[string]any{"apiGroup": rbacGroup, "kind": "User", "name": user}},
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	w.delete(id)
	w.eventually("the revoked credential being refused", func() error {
		_, all := resourceOf(holder, "", "namespaces").List(t.Context(), metav1.ListOptions{})
		_, own := resourceOf(holder, "", "configmaps").Namespace(w.namespace).List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(all) || !apierrors.IsForbidden(own) {
			return errors.Join(errors.New("it still works"), all, own)
		}
		return nil
	})
	if _, err := resourceOf(second, "", "namespaces").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the other credential of the principal: %v", err)
	}
	kept, err := resourceOf(w.admin, rbacGroup, "clusterrolebindings").Get(t.Context(), "again-"+w.namespace,
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	subjects, _, _ := unstructured.NestedSlice(kept.Object, "subjects")
	if len(subjects) != 1 || subjects[0].(map[string]any)["name"] != "kept-of-again-"+w.namespace {
		t.Errorf("the holder's binding has the subjects %v, want the other user alone", subjects)
	}
}
