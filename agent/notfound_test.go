package agent

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// The API server refuses a binding without its role with a 404 that names the role. The kind
// remains known: the manifest is not applied, with the API server's message, and its object is not
// available. When the role exists, the agent creates the binding.
func TestABindingWithoutItsRoleIsNotAvailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	binding := json.RawMessage(
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"b","namespace":"` +
			w.ns + `"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"late"},"subjects":[{"kind":"ServiceAccount","name":"x","namespace":"` + w.ns + `"}]}`)
	w.server.apply("one", manifests(binding, configMap(w.ns, "a", "k", "1")))
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	w.server.awaitCondition("one", workv1.WorkAvailable, metav1.ConditionFalse)
	m := w.server.manifest("one", 0)
	applied, available := meta.FindStatusCondition(m.Conditions, workv1.ManifestApplied), meta.FindStatusCondition(
		m.Conditions, workv1.ManifestAvailable)
	if applied.Status != metav1.ConditionFalse || !strings.Contains(applied.Message, `"late" not found`) {
		t.Errorf("Applied is %s: %s", applied.Status, applied.Message)
	}
	if available.Status != metav1.ConditionFalse || available.Reason != "ResourceNotAvailable" {
		t.Errorf("Available is %s: %s", available.Status, available.Reason)
	}
	if want := (workv1.ManifestResourceMeta{
		Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding", Resource: "rolebindings", Namespace: w.ns, Name: "b",
	}); m.ResourceMeta != want {
		t.Errorf("the manifest is %+v, want %+v", m.ResourceMeta, want)
	}
	w.create(t, schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, w.ns,
		map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": map[string]any{"name": "late"},
			"rules": []any{},
		})
	w.server.awaitApplied("one")
}

func TestOnlyAnUnservedPathIsAnUnknownKind(t *testing.T) {
	roles := schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "roles"}
	for name, test := range map[string]struct {
		err  error
		want errorKind
	}{
		"a namespace": {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x"), errNamespace},
		"a role":      {apierrors.NewNotFound(roles, "x"), errRefused},
		"the object":  {apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "x"), errRefused},
		"no such path": {apierrors.NewGenericServerResponse(http.StatusNotFound, "PATCH", roles, "x",
			"404 page not found", 0, true), errNoKind},
	} {
		if got := classifyError(test.err); got.kind != test.want {
			t.Errorf("%s: error kind %d, want %d (%s)", name, got.kind, test.want, got.message)
		}
	}
}
