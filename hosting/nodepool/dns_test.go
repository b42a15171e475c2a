package nodepool

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/hosting/controlplane"
)

func TestDNSIsAppliedAndKeepsTheChangesOfTheCustomer(t *testing.T) {
	w := newWorld(t, Options{})
	core := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: resource}
	}
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	get := func(resource schema.GroupVersionResource, name string) (*unstructured.Unstructured, error) {
		return w.admin.Resource(resource).Namespace("kube-system").Get(t.Context(), name, metav1.GetOptions{})
	}
	remove := func(resource schema.GroupVersionResource, name string) {
		t.Helper()
		err := w.admin.Resource(resource).Namespace("kube-system").Delete(t.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	for resource, name := range map[string]string{"services": "kube-dns", "configmaps": "coredns"} {
		remove(core(resource), name) // of an earlier test on the same plane
	}
	s := &watchedPlane{cluster: controlplane.ID{Namespace: w.namespace, Name: w.cluster}, client: w.admin}
	now := time.Now()
	apply := func() {
		t.Helper()
		now = now.Add(dnsInterval)
		w.eventually("DNS being applied", func() error { return s.applyDNS(t.Context(), now) })
	}

	w.mc.Create(core("services"), "kube-system", map[string]any{"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"name": "kube-dns"}, "spec": map[string]any{"ports": []any{map[string]any{
			"port": int64(53), "protocol": "UDP"}}}})
	apply()
	if _, err := get(core("configmaps"), "coredns"); !apierrors.IsNotFound(err) {
		t.Errorf("beside the customer's own DNS hosting has made CoreDNS: %v", err)
	}

	remove(core("services"), "kube-dns")
	services, err := s.serviceNetwork(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	taken, _ := offset(services, dnsService)
	w.mc.Create(core("services"), "kube-system", map[string]any{"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"name": "mine"}, "spec": map[string]any{"clusterIP": taken.String(),
			"ports": []any{map[string]any{"port": int64(53), "protocol": "UDP"}}}})
	apply()
	if _, err := get(core("configmaps"), "coredns"); !apierrors.IsNotFound(err) {
		t.Errorf("beside the customer's DNS at its address hosting has made CoreDNS: %v", err)
	}

	remove(core("services"), "mine")
	apply()
	service, err := get(core("services"), "kube-dns")
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := unstructured.NestedString(service.Object, "spec", "clusterIP")
	if !strings.HasSuffix(address, ".0.10") {
		t.Errorf("the Service of DNS has the address %s", address)
	}

	w.patch(core("configmaps"), "kube-system", "coredns", map[string]any{"data": map[string]any{"Corefile": "mine"}})
	remove(deployments, "coredns")
	apply()
	config, err := get(core("configmaps"), "coredns")
	if err != nil {
		t.Fatal(err)
	}
	if corefile, _, _ := unstructured.NestedString(config.Object, "data", "Corefile"); corefile != "mine" {
		t.Errorf("hosting has replaced the customer's Corefile by %s", corefile)
	}
	if _, err := get(deployments, "coredns"); err != nil {
		t.Errorf("hosting did not make the deleted Deployment again: %v", err)
	}
}
