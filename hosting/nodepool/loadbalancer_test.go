package nodepool

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/hosting/localnodes"
	"atoll.dev/hosting/loop"
)

func TestWhichPortsOfALoadBalancerAreForwarded(t *testing.T) {
	s := &service{}
	s.Spec.Ports = []servicePort{{"TCP", 80, 30080}, {"UDP", 53, 30053}, {"TCP", 443, 0}, {"TCP", 6443, 30443}}
	forward, status := portsToForward(s, (&reconciler{o: Options{Router: "10.0.0.1:6443"}}).routerPort())
	if want := []localnodes.ServicePort{{Port: 80, NodePort: 30080}}; !slices.Equal(forward, want) {
		t.Errorf("forwarded are %v, want %v", forward, want)
	}
	var said []string
	for _, p := range status {
		text := ""
		if p.Error != nil {
			text = *p.Error
		}
		said = append(said, fmt.Sprintf("%d/%s %s", p.Port, p.Protocol, text))
	}
	if want := []string{"80/TCP ", "53/UDP UnsupportedProtocol", "443/TCP NoNodePort",
		"6443/TCP PortReserved"}; !slices.Equal(said, want) {
		t.Errorf("the status says %q, want %q", said, want)
	}
}

func TestATrimmedServiceIsBounded(t *testing.T) {
	var ports []any
	for i := range 3 * maxServicePorts {
		ports = append(ports, map[string]any{"protocol": "TCP", "port": int64(i + 1), "nodePort": int64(30000 + i)})
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"name": "s", "namespace": "n", "resourceVersion": "7",
			"annotations": map[string]any{"large": "text"}},
		"spec": map[string]any{"ports": ports, "selector": map[string]any{"a": "b"}}}}
	trimService(u)
	s, err := loop.Decode[service](u)
	if err != nil || len(s.Spec.Ports) != maxServicePorts || s.Spec.Ports[1] != (servicePort{"TCP", 2, 30001}) {
		t.Errorf("%d ports, error %v", len(s.Spec.Ports), err)
	}
	if u.GetName() != "s" || u.GetNamespace() != "n" || u.GetResourceVersion() != "7" || len(u.GetAnnotations()) != 0 {
		t.Errorf("metadata %v", u.Object["metadata"])
	}
}
