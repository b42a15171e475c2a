package nodepool

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	realnode "atoll.dev/node"
)

// asNode returns a client with the identity of a node's kubelet.
func (w *world) asNode(name string) dynamic.ResourceInterface {
	w.t.Helper()
	config, err := w.planes.config.RESTConfig()
	if err != nil {
		w.t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + name, Groups: []string{"system:nodes",
		"system:authenticated"}}
	return dynamicFor(w.t, config).Resource(nodeResource())
}

// A kubelet does its work on its own Node, and changes nothing there by which its node pool, hosting or the customer's
// pods choose Nodes. It creates no Node: a machine that was removed keeps a valid certificate for a year.
func TestAKubeletChangesNothingOfItsPool(t *testing.T) {
	w := newWorld(t, Options{})
	w.realPool("k", cluster.External, 2)
	w.change("k", map[string]any{"nodeLabels": map[string]any{"tier": "web"}})
	w.ready("k")
	w.token("kkkkk1", "k", time.Now().Add(time.Hour))
	key := machineKey(t)
	w.eventually("the machine being admitted", func() error { // the API server knows a new token a moment later
		refusal, err := w.joinAs("kkkkk1", "0123456789abcdef", "k-kkkkk1", key)
		if err == nil && refusal != "" {
			t.Fatalf("the machine is refused: %s", refusal)
		}
		return err
	})
	w.awaitNodes("k", "k-kkkkk1")
	nodes := w.asNode("k-kkkkk1")
	patch := func(text string, subresources ...string) error {
		_, err := nodes.Patch(t.Context(), "k-kkkkk1", types.MergePatchType, []byte(text), metav1.PatchOptions{},
			subresources...)
		return err
	}
	probes := 0
	w.eventually("the policy being in force", func() error {
		probes++ // a label that an earlier probe has set would be no change
		err := patch(fmt.Sprintf(`{"metadata":{"labels":{"example.org/probe":"x%d"}}}`, probes))
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("a label of the customer: %v", err)
		}
		return nil
	})
	pool := w.cluster + "-other"
	for what, change := range map[string]string{
		"the label of its pool":           fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, hypershift.NodePoolLabel, pool),
		"no label of a pool":              fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, hypershift.NodePoolLabel),
		"its provider":                    `{"metadata":{"labels":{"atoll.dev/node-provider":"local"}}}`,
		"a label of the pool's spec":      `{"metadata":{"labels":{"tier":"database"}}}`,
		"no label of the pool's spec":     `{"metadata":{"labels":{"tier":null}}}`,
		"another label":                   `{"metadata":{"labels":{"team":"payments"}}}`,
		"another host name":               `{"metadata":{"labels":{"kubernetes.io/hostname":"k-0"}}}`,
		"a label that its pods may trust": `{"metadata":{"labels":{"node-restriction.kubernetes.io/fips":"true"}}}`,
		"its place":                       fmt.Sprintf(`{"metadata":{"annotations":{%q:"{}"}}}`, realnode.PlaceAnnotation),
		"the key of its machine":          fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, realnode.KeyAnnotation),
		"that hosting drains it":          fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, drainingAnnotation),
		"that it is simulated":            `{"metadata":{"annotations":{"kwok.x-k8s.io/node":"fake"}}}`,
		"a finalizer":                     `{"metadata":{"finalizers":["example.org/stay"]}}`,
		"a taint":                         `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`,
	} {
		if err := patch(change); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", what, err)
		}
		if err := patch(change, "status"); err == nil {
			object, err := nodes.Get(t.Context(), "k-kkkkk1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if taints, _, _ := unstructured.NestedSlice(object.Object, "spec", "taints"); what != "a taint" ||
				len(taints) > 1 { // its status ignores spec; Kubernetes' own taint is there
				t.Errorf("%s is accepted with the status", what)
			}
		}
	}
	for _, permitted := range []struct{ what, change string }{
		{"what its machine is",
			`{"metadata":{"labels":{"kubernetes.io/arch":"amd64","node.kubernetes.io/instance-type":"x"}}}`},
		{"how volumes attach",
			`{"metadata":{"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":"true"}}}`},
		{"its capacity and runtime",
			`{"status":{"capacity":{"cpu":"2"},"nodeInfo":{"containerRuntimeVersion":"containerd://2"}}}`},
		{"that its machine leaves", fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, realnode.LeavingAnnotation)},
	} {
		if err := patch(permitted.change, "status"); err != nil {
			t.Errorf("%s: %v", permitted.what, err)
		}
	}

	// It has said that it leaves: hosting deletes its Node, and its certificate is still valid.
	w.awaitNodes("k")
	_, err := nodes.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
		"kind": "Node", "metadata": map[string]any{"name": "k-kkkkk1"}}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "needs another token") {
		t.Errorf("a removed machine creates its Node again: %v", err)
	}
	w.delete("k")
	w.gone("k")
}

func TestExpiredTokensAreRemoved(t *testing.T) {
	w := newWorld(t, Options{})
	now := time.Now()
	w.token("ttttt1", "t", now.Add(-time.Hour))
	w.token("ttttt2", "t", now.Add(time.Hour))
	w.token("ttttt3", "t", now.Add(-tokenGrace/2))
	w.token("ttttt4", "t", now.Add(-time.Hour))
	w.patch(secretResource(), "kube-system", "bootstrap-token-ttttt4", map[string]any{"stringData": map[string]any{
		"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"}})
	w.realPool("t", cluster.External, 1)
	get := func(id string) error {
		_, err := w.admin.Resource(secretResource()).Namespace("kube-system").Get(t.Context(), "bootstrap-token-"+id,
			metav1.GetOptions{})
		return err
	}
	w.eventually("the removal of an expired token", func() error {
		if err := get("ttttt1"); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
	for id, what := range map[string]string{"ttttt2": "a valid token", "ttttt3": "a token that has just expired",
		"ttttt4": "a token of the customer"} {
		if err := get(id); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.delete("t")
	w.gone("t")
}
