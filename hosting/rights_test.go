package hosting

import (
	"crypto/rand"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/accounttoken"
)

// TestHostingIsRefusedTokensAndSecretsOfOthers tries, with hosting's rights, what whoever has its token would try.
func TestHostingIsRefusedTokensAndSecretsOfOthers(t *testing.T) {
	admin, hosting := client(t, administrator(t)), client(t, accountConfig(t))
	namespace := "rights-" + strings.ToLower(rand.Text()[:6])
	makeNamespace(t, admin, namespace)
	secret := func(name, kind string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Secret", "type": kind,
			"metadata": map[string]any{"name": name, "namespace": namespace,
				"labels":      map[string]any{"app.kubernetes.io/managed-by": "atoll"},
				"annotations": map[string]any{"kubernetes.io/service-account.name": "default"}},
			"data": map[string]any{"key": encode([]byte("value"))}}
	}
	foreign := &unstructured.Unstructured{Object: secret("foreign", "Opaque")}
	if _, err := admin.Resource(secrets()).Namespace(namespace).Create(t.Context(), foreign,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own := secret("own", "Opaque")
	if err := applySecret(t.Context(), hosting, own); err != nil {
		t.Fatalf("making a Secret: %v", err)
	}
	own["data"] = map[string]any{"key": encode([]byte("changed"))}
	if err := applySecret(t.Context(), hosting, own); err != nil {
		t.Errorf("changing its own Secret: %v", err)
	}

	patch := func(namespace, name string, kind types.PatchType, text string) error {
		_, err := hosting.Resource(secrets()).Namespace(namespace).Patch(t.Context(), name, kind, []byte(text),
			metav1.PatchOptions{})
		return err
	}
	request := func(namespace, name string, seconds int64) error {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "authentication.k8s.io/v1",
			"kind": "TokenRequest", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"expirationSeconds": seconds}}}
		_, err := hosting.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).
			Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{}, "token")
		return err
	}
	for what, err := range map[string]error{
		"reading a Secret by a patch that changes nothing": patch(namespace, "foreign", types.MergePatchType, `{}`),
		"reading the pull secret by such a patch": patch("atoll-hosting", pullSecretName, types.MergePatchType,
			`{}`),
		"changing a Secret":    patch(namespace, "foreign", types.MergePatchType, `{"data":{"key":"eA=="}}`),
		"taking over a Secret": applySecret(t.Context(), hosting, secret("foreign", "Opaque")),
		"deleting a Secret": hosting.Resource(secrets()).Namespace(namespace).Delete(t.Context(), "foreign",
			metav1.DeleteOptions{}),
		"a Secret that is a token": applySecret(t.Context(), hosting, secret("token",
			"kubernetes.io/service-account-token")),
		"a Secret that is a bootstrap token": applySecret(t.Context(), hosting, secret("bootstrap-token-abcdef",
			"bootstrap.kubernetes.io/token")),
		"a token of another service account":          request(namespace, "default", 3600),
		"a token of a controller":                     request("kube-system", "default", 3600),
		"a token of its own that is valid for a year": request("atoll-hosting", account, 365*24*3600),
		"listing Secrets":                             list(t, hosting, secrets()),
		"listing service accounts": list(t, hosting, schema.GroupVersionResource{Version: "v1",
			Resource: "serviceaccounts"}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
	h := &Hosting{o: Options{Client: hosting, Log: slog.New(slog.DiscardHandler)}}
	foreign = &unstructured.Unstructured{Object: secret("hc-admin-kubeconfig", "Opaque")}
	if _, err := admin.Resource(secrets()).Namespace(namespace).Create(t.Context(), foreign,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := h.deleteSecret(t.Context(), controlplane.ID{Namespace: namespace, Name: "hc"}); err != nil {
		t.Errorf("the deletion of a cluster waits for the Secret of somebody else: %v", err)
	}
	if _, err := accounttoken.Request(t.Context(), hosting, "atoll-hosting", account); err != nil {
		t.Errorf("renewing its own token: %v", err)
	}
	if err := hosting.Resource(secrets()).Namespace(namespace).Delete(t.Context(), "own",
		metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting its own Secret: %v", err)
	}
}

func list(t *testing.T, client dynamic.Interface, resource schema.GroupVersionResource) error {
	_, err := client.Resource(resource).List(t.Context(), metav1.ListOptions{})
	return err
}
