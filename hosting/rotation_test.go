package hosting

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/api/rotation"
	"atoll.dev/hosting/controlplane"
)

// rotate orders steps of rotations of a cluster.
func (w *world) rotate(key controlplane.ID, orders map[rotation.Key]rotation.Order) {
	w.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		hypershift.RotationsAnnotation: marshal(w.T, orders)}}})
	if err != nil {
		w.Fatal(err)
	}
	w.patch(key, string(body))
}

// rotated waits until a rotation has one of the phases.
func (w *world) rotated(key controlplane.ID, kind rotation.Key, id string,
	phases ...rotation.Phase) hypershift.RotationStatus {
	w.Helper()
	var s hypershift.RotationStatus
	w.wait(fmt.Sprintf("rotation %s of the %s key to be %v", id, kind, phases), func() error {
		s = w.get(key).Status.Rotations[string(kind)]
		for _, p := range phases {
			if s.ID == id && s.Phase == p {
				return nil
			}
		}
		return fmt.Errorf("%+v", s)
	})
	return s
}

// token returns a token that the plane makes for a service account.
func (w *world) token(c dynamic.Interface) string {
	w.Helper()
	made, err := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).Namespace("default").
		Create(w.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "authentication.k8s.io/v1",
			"kind": "TokenRequest", "metadata": map[string]any{"name": "default"}}}, metav1.CreateOptions{}, "token")
	if err != nil {
		w.Fatal(err)
	}
	token, _, _ := unstructured.NestedString(made.Object, "status", "token")
	return token
}

// storedToken returns the token in a Secret of the type of service account tokens.
func (w *world) storedToken(c dynamic.Interface, name string) (string, error) {
	w.Helper()
	s, err := c.Resource(secrets()).Namespace("default").Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	text, _, _ := unstructured.NestedString(s.Object, "data", "token")
	token, err := base64.StdEncoding.DecodeString(text)
	if err == nil && len(token) == 0 {
		err = errStill
	}
	return string(token), err
}

// isAccepted reports whether the plane knows the bearer of a token.
func (w *world) isAccepted(key controlplane.ID, token string) bool {
	w.Helper()
	admin, err := w.h.Client(key)
	if err != nil {
		w.Fatal(err)
	}
	config, err := admin.RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	_, err = client(w.T, config).Resource(schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1",
		Resource: "selfsubjectreviews"}).Create(w.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}}, metav1.CreateOptions{})
	return !apierrors.IsUnauthorized(err)
}

// A customer replaces the keys of a plane in two steps, while hosting is stopped after each order. Old tokens are
// accepted until the second step, and Secrets are readable throughout; afterwards the old keys are gone. Steps out of
// order are refused.
func TestThePlanesKeysAreRotatedInTwoSteps(t *testing.T) {
	w := newWorld(t, "rotate")
	key := w.create("one", nil)
	_, c := w.available(key)
	accounts := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"})
	for _, namespace := range []string{"default", "kube-system"} { // the plane's controllers make them
		w.wait("the service account", func() error {
			_, err := accounts.Namespace(namespace).Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
	}
	w.createSecret(c, "own", nil)
	w.createSecret(c, "stored", map[string]any{"kubernetes.io/service-account.name": "default"})
	var stored string
	w.wait("the stored token", func() (err error) { stored, err = w.storedToken(c, "stored"); return err })
	old := w.token(c)
	serviceAccounts := filepath.Join(w.dir(key), "pki", "service-account.key")
	encryption := filepath.Join(w.dir(key), "pki", "encryption.yaml")
	oldSigning, oldEncryption := string(readFile(t, serviceAccounts)), string(readFile(t, encryption))
	const first, second = rotation.Prepare, rotation.Complete
	kinds := rotation.Keys
	order := func(id string, step rotation.Step, phase rotation.Phase) {
		t.Helper()
		orders := map[rotation.Key]rotation.Order{}
		for _, k := range kinds {
			orders[k] = rotation.Order{ID: id, Step: step}
		}
		w.rotate(key, orders)
		w.rotated(key, kinds[0], id, rotation.Preparing, rotation.Completing, phase)
		w.stop() // as a kill: the plane runs on
		w.start()
		for _, k := range kinds {
			w.rotated(key, k, id, phase)
		}
	}

	pid := w.pid(key)
	w.rotate(key, map[rotation.Key]rotation.Order{rotation.EncryptionKey: {ID: "none", Step: second}})
	s := w.rotated(key, rotation.EncryptionKey, "none", rotation.Failed)
	if !strings.Contains(s.Message, "was not prepared") || w.pid(key) != pid {
		t.Errorf("the second step without the first: %+v", s)
	}

	order("r1", first, rotation.Prepared)
	if w.pid(key) == pid {
		t.Fatal("the plane was not started with other keys")
	}
	_, c = w.available(key)
	between := w.token(c)
	if !w.isAccepted(key, old) || !w.isAccepted(key, stored) || !w.isAccepted(key, between) {
		t.Error("after the first step, a token is refused")
	}
	if strings.Contains(string(readFile(t, serviceAccounts)), oldSigning) {
		t.Error("after the first step, the plane's directory has the old key that signs tokens")
	}
	s = w.get(key).Status.Rotations["encryption"]
	if s.PreparingAt == nil || s.PreparedAt == nil || s.CompletedAt != nil {
		t.Errorf("the times of the first step: %+v", s)
	}

	order("r1", second, rotation.Completed)
	_, c = w.available(key)
	if w.isAccepted(key, old) || w.isAccepted(key, stored) {
		t.Error("after the second step, a token of the old key is accepted")
	}
	var renewed string
	w.wait("another stored token", func() (err error) {
		if renewed, err = w.storedToken(c, "stored"); err == nil && renewed == stored {
			return errStill
		}
		return err
	})
	if !w.isAccepted(key, between) || !w.isAccepted(key, renewed) || !w.isAccepted(key, w.token(c)) {
		t.Error("after the second step, a token of the new key is refused")
	}
	for _, name := range []string{"own", "stored"} {
		if _, err := c.Resource(secrets()).Namespace("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("after the second step: %v", err)
		}
	}
	for path, content := range map[string]string{serviceAccounts: oldSigning, encryption: oldEncryption} {
		for line := range strings.Lines(content) {
			if len(line) > 40 && strings.Contains(string(readFile(t, path)), strings.TrimSpace(line)) {
				t.Errorf("after the second step, %s has the old key", filepath.Base(path))
			}
		}
	}

	pid = w.pid(key)
	order("r1", first, rotation.Completed)
	if w.pid(key) != pid {
		t.Error("a step of a completed rotation was executed again")
	}
}

// createSecret creates a Secret in a plane; with annotations it is one of the tokens of service accounts.
func (w *world) createSecret(c dynamic.Interface, name string, annotations map[string]any) {
	w.Helper()
	kind := "Opaque"
	if annotations != nil {
		kind = "kubernetes.io/service-account-token"
	}
	if _, err := c.Resource(secrets()).Namespace("default").Create(w.Context(), &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "type": kind,
			"metadata": map[string]any{"name": name, "annotations": annotations}}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}
