package hosting

import (
	"crypto/rand"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The error of a refused Secret comes into the conditions of an ExternalSecret, and into the log. The API server's own
// text quotes the value.
func TestI11TheErrorOfASecretThatHostingWritesQuotesNoValue(t *testing.T) {
	admin := client(t, administrator(t))
	namespace := "quotes-" + strings.ToLower(rand.Text()[:6])
	makeNamespace(t, admin, namespace)
	err := applySecret(t.Context(), admin, map[string]any{"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": "refused", "namespace": namespace}, "stringData": map[string]any{
			"pin": int64(4711471147114711)}})
	if err == nil || strings.Contains(err.Error(), "47114711") || !strings.Contains(err.Error(), "field .stringData.pin") {
		t.Errorf("the error is %v", err)
	}
	err = applySecret(t.Context(), admin, map[string]any{"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": "lost", "namespace": namespace + "x"}})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "namespaces") {
		t.Errorf("the error of a missing namespace is %v", err)
	}
}
