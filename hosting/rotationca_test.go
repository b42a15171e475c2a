package hosting

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/api/rotation"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/quick"
)

// reads returns a request of client-go with the administrator's kubeconfig that the management cluster has now. Its
// connections wait while the plane starts again, on a busy machine longer than the 10 s of client-go's own transport.
func (p *port) reads(hc *hypershift.HostedCluster) func() error {
	p.t.Helper()
	w, config := p.w.Load(), p.adminConfig(hc)
	config.QPS = -1
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := dynamic.NewForConfigAndClient(config, &http.Client{Timeout: waitLimit,
		Transport: &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}})
	if err != nil {
		p.t.Fatal(err)
	}
	return func() error {
		_, err := c.Resource(namespaces()).Get(w.Context(), "default", metav1.GetOptions{})
		return err
	}
}

// repeat sends a request again and again until stop is called, which returns the number of answers. Each error fails
// the test.
func repeat(t *testing.T, who string, request func() error) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	answered := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := request(); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", who, err)
				return
			}
			answered++
		}
	})
	return sync.OnceValue(func() int {
		cancel()
		wg.Wait()
		return answered
	})
}

// certificates counts the certificates of a key of a ConfigMap in kube-system.
func (w *world) certificates(c dynamic.Interface, name, key string) (int, error) {
	w.Helper()
	m, err := c.Resource(configMaps()).Namespace(metav1.NamespaceSystem).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	text, _, _ := unstructured.NestedString(m.Object, "data", key)
	return strings.Count(text, "BEGIN CERTIFICATE"), nil
}

// A customer replaces the CA of a plane in two steps, while requests with a kubeconfig of before and with one of
// between the steps go through the router. No request fails until the second step, which waits for a node with a
// certificate of the old CA. Afterwards nothing trusts the old CA.
func TestTheCAOfAPlaneIsRotatedInTwoSteps(t *testing.T) {
	quick.Slow(t, "starts a plane four times")
	p := newPort(t)
	w := newWorld(t, "ca", func(o *Options) { o.Advertise, o.Routes = p.address, p.open() })
	p.w.Store(w)
	p.serve()
	key := w.create("one", nil)
	_, c := w.available(key)
	var hc *hypershift.HostedCluster
	w.wait("the kubeconfig", func() error {
		if hc = w.get(key); hc.Status.KubeConfig == nil {
			return errStill
		}
		return nil
	})
	nodes := func(c dynamic.Interface) dynamic.ResourceInterface {
		return c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	}
	for name, labels := range map[string]map[string]any{"real": nil, "fake": {controlplane.SimulatedLabel: "true"}} {
		if _, err := nodes(c).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
			"kind": "Node", "metadata": map[string]any{"name": name, "labels": labels}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	order := func(step rotation.Step, phases ...rotation.Phase) hypershift.RotationStatus {
		t.Helper()
		w.rotate(key, map[rotation.Key]rotation.Order{rotation.CAKey: {ID: "r1", Step: step}})
		return w.rotated(key, rotation.CAKey, "r1", phases...)
	}
	trusts := func(c dynamic.Interface, count int) {
		t.Helper()
		for name, data := range map[string]string{"kube-root-ca.crt": "ca.crt", trustedClients: trustedClientsKey} {
			w.wait(fmt.Sprintf("%d CAs in %s", count, name), func() error {
				if n, err := w.certificates(c, name, data); err != nil || n != count {
					return fmt.Errorf("%d, %v", n, err)
				}
				return nil
			})
		}
	}
	oldKey := string(readFile(t, filepath.Join(w.dir(key), "pki", "ca.key")))
	trusts(c, 1)

	old := p.reads(hc)
	stopOld := repeat(t, "with the old kubeconfig", old)
	defer stopOld()
	order(rotation.Prepare, rotation.Prepared)
	between := p.reads(w.get(key))
	stopBetween := repeat(t, "with a kubeconfig of after the first step", between)
	defer stopBetween()
	_, c = w.available(key)
	trusts(c, 2)
	if strings.Contains(string(readFile(t, filepath.Join(w.dir(key), "pki", "ca.key"))), oldKey) {
		t.Error("after the first step, the plane's directory has the key of the old CA")
	}

	s := order(rotation.Complete, rotation.Completing)
	w.wait("the name of the node", func() error {
		s = w.get(key).Status.Rotations[string(rotation.CAKey)]
		if !strings.Contains(s.Message, ": real;") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if err := old(); err != nil {
		t.Errorf("while the second step waits for a node: %v", err)
	}
	n := stopOld()
	if err := nodes(c).Delete(t.Context(), "real", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.rotated(key, rotation.CAKey, "r1", rotation.Completed)
	if err := old(); err == nil {
		t.Error("after the second step, the old kubeconfig works")
	}
	_, c = w.available(key)
	trusts(c, 1)
	if err := between(); err != nil {
		t.Errorf("after the second step: %v", err)
	}
	t.Logf("%d requests with the old kubeconfig, %d with the new one", n, stopBetween())
}
