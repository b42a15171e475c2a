package agent

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/test/testsite"
)

var (
	admissionKind = schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	secrets       = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	vaults        = schema.GroupVersionResource{Group: "hosting.atoll.dev", Version: "v1", Resource: "vaults"}
	definitions   = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
)

// secretValue is the value of the Secrets that the API server refuses, and secretNumber is one that is no text.
const (
	secretValue  = "hunter2-swordfish"
	secretNumber = 4711471147114711
)

// Of a refused Secret, or of a refused object with a Secret inside, the status says what the API server did not take,
// and has no value. The API server's own texts quote values, encoded and in clear.
func TestI11ErrorsOfAppliedObjectsQuoteNoSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	encoded := base64.StdEncoding.EncodeToString([]byte(secretValue))
	w.defineVaults(t)
	policy, webhook := w.quotingPolicy(t), w.quotingWebhook(t)
	secret := func(name string, content map[string]any) map[string]any {
		content["apiVersion"], content["kind"] = "v1", "Secret"
		content["metadata"] = map[string]any{"name": name, "namespace": w.ns, "labels": map[string]any{"refuse": name}}
		return content
	}
	data := func(value any) map[string]any { return map[string]any{"data": map[string]any{"pin": value}} }
	cases := []struct {
		object map[string]any
		quoted string // by the API server
		want   string // in the message of Applied
	}{
		{secret("not-base64", data(secretValue+"!")), "", "Internal Server Error"},
		{secret("number", map[string]any{"stringData": map[string]any{"pin": secretNumber}}), "", "BadRequest"},
		{secret("bad-key", map[string]any{"data": map[string]any{"a b": encoded}}), "",
			"field data[a b]: FieldValueInvalid"},
		{secret("policy", data(encoded)), encoded, policy},
		{secret("webhook", data(encoded)), secretValue, webhook},
		{map[string]any{"apiVersion": vaults.GroupVersion().String(), "kind": "Vault",
			"metadata": map[string]any{"name": "vault", "namespace": w.ns}, "spec": map[string]any{
				"template": secret("inside", map[string]any{"stringData": map[string]any{"pin": secretValue}})}},
			secretValue, "field spec.template.stringData.pin: FieldValueInvalid"},
	}
	var all []json.RawMessage
	for _, c := range cases {
		all = append(all, raw(c.object))
		resource := secrets
		if c.object["kind"] == "Vault" {
			resource = vaults
		}
		testsite.Eventually(t, "the API server refuses the object", func() error { // it reads policies and webhooks late
			_, err := w.in(resource, w.ns).Create(t.Context(), &unstructured.Unstructured{Object: c.object},
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil || !strings.Contains(err.Error(), c.quoted) {
				return fmt.Errorf("the answer does not quote %q: %w", c.quoted, err)
			}
			return nil
		})
	}

	w.server.apply("one", manifests(all...))
	w.server.await("each manifest to be refused", func() bool {
		st := w.server.bundles["one"].status
		return st != nil && len(st.ResourceStatus) == len(cases) && !strings.Contains(fmt.Sprint(st.ResourceStatus),
			"resource type")
	})
	for i, c := range cases {
		applied := meta.FindStatusCondition(w.server.manifest("one", i).Conditions, workv1.ManifestApplied)
		if applied == nil || applied.Status != metav1.ConditionFalse || !strings.Contains(applied.Message, c.want) {
			t.Errorf("manifest %d: %+v, want %q", i, applied, c.want)
		}
	}
	status, err := json.Marshal(w.server.bundles["one"].status)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{secretValue, secretValue[:7], encoded, encoded[:8], fmt.Sprint(secretNumber)} {
		if strings.Contains(string(status), value) {
			t.Errorf("the status quotes %q: %s", value, status)
		}
	}
	w.server.delete("one")
	w.server.awaitGone("one")
}

// defineVaults makes a kind with a Secret inside, whose values the API server checks and quotes.
func (w *world) defineVaults(t *testing.T) {
	t.Helper()
	object := func(properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties}
	}
	pattern := map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string",
		"pattern": "^[0-9]+$"}}
	_, err := w.in(definitions, "").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "vaults." + vaults.Group},
		"spec": map[string]any{"group": vaults.Group, "scope": "Namespaced", "names": map[string]any{"plural": "vaults",
			"kind": "Vault"}, "versions": []any{map[string]any{"name": vaults.Version, "served": true, "storage": true,
			"schema": map[string]any{"openAPIV3Schema": object(map[string]any{"spec": object(map[string]any{
				"template": object(map[string]any{"stringData": pattern})})})}}}},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // -count repeats the test in the same cluster
		t.Fatal(err)
	}
}

// quotingPolicy makes an admission policy that quotes the Secrets named policy of the test's namespace, and returns its
// name.
func (w *world) quotingPolicy(t *testing.T) string {
	t.Helper()
	name := "policy." + w.ns
	w.create(t, admissionKind.WithResource("validatingadmissionpolicies"), "", map[string]any{
		"apiVersion": admissionKind.String(), "kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{"apiGroups": []any{""},
				"apiVersions": []any{"v1"}, "operations": []any{"CREATE", "UPDATE"}, "resources": []any{"secrets"}}}},
			"validations": []any{map[string]any{"expression": "false", "reason": "Forbidden",
				"messageExpression": "'the pin is ' + string(object.data.pin)"}},
		},
	})
	w.create(t, admissionKind.WithResource("validatingadmissionpolicybindings"), "", map[string]any{
		"apiVersion": admissionKind.String(), "kind": "ValidatingAdmissionPolicyBinding",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"policyName": name, "validationActions": []any{"Deny"},
			"matchResources": w.refusedBy("policy")},
	})
	return name
}

// quotingWebhook makes and serves an admission webhook that quotes the Secrets named webhook of the test's namespace,
// and returns its name. The webhook also chooses the reason of the answer.
func (w *world) quotingWebhook(t *testing.T) string {
	t.Helper()
	name := "webhook." + w.ns + ".test"
	serving := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var secret struct{ Data map[string][]byte }
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		if err := json.Unmarshal(review.Request.Object.Raw, &secret); err != nil {
			t.Error(err)
		}
		pin := string(secret.Data["pin"])
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{
			Code: http.StatusForbidden, Message: "weak pin: " + pin, Reason: metav1.StatusReason(pin),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: pin, Type: metav1.CauseType(pin)}}}}}
		review.Request = nil
		if err := json.NewEncoder(rw).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(serving.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serving.Certificate().Raw})
	hook := w.refusedBy("webhook")
	hook["name"], hook["admissionReviewVersions"], hook["sideEffects"] = name, []any{"v1"}, "None"
	hook["clientConfig"] = map[string]any{"url": serving.URL, "caBundle": base64.StdEncoding.EncodeToString(ca)}
	hook["rules"] = []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"},
		"operations": []any{"CREATE", "UPDATE"}, "resources": []any{"secrets"}}}
	resource := admissionKind.WithResource("validatingwebhookconfigurations")
	w.create(t, resource, "", map[string]any{"apiVersion": admissionKind.String(),
		"kind": "ValidatingWebhookConfiguration", "metadata": map[string]any{"name": name}, "webhooks": []any{hook}})
	return name
}

// refusedBy returns the selectors of the objects of the test's namespace that a policy or webhook refuses.
func (w *world) refusedBy(name string) map[string]any {
	return map[string]any{
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": w.ns}},
		"objectSelector":    map[string]any{"matchLabels": map[string]any{"refuse": name}},
	}
}
