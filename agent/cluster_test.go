package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// cluster is a bootstrapped management cluster.
type cluster struct {
	plane *plane.Process
	admin dynamic.Interface
	agent *rest.Config
}

// shared is the cluster of all tests of this process.
var shared struct {
	sync.Mutex
	cluster *cluster       // nil: not bootstrapped yet
	runs    map[string]int // counts the namespaces that each test has got
}

// sharedCluster returns the test process's plane, bootstrapped, and a namespace in it for this test alone.
func sharedCluster(t *testing.T) (*cluster, string) {
	t.Helper()
	p := planetest.Shared(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		shared.cluster, shared.runs = bootstrap(t, p), map[string]int{}
	}
	c := shared.cluster
	ns := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	ns = strings.Trim(ns[max(0, len(ns)-50):], "-")
	if shared.runs[ns]++; shared.runs[ns] > 1 { // -count repeats the test in the same cluster
		ns = fmt.Sprint(ns, "-", shared.runs[ns])
	}
	c.create(t, namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": ns}})
	return c, ns
}

func bootstrap(t *testing.T, p *plane.Process) *cluster {
	t.Helper()
	admin, err := p.Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	admin.QPS, admin.Burst = 1000, 1000
	kubeconfig, err := Bootstrap(t.Context(), admin, BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{plane: p, admin: dyn, agent: cfg}
}

func (c *cluster) in(gvr schema.GroupVersionResource, ns string) dynamic.ResourceInterface {
	if ns == "" {
		return c.admin.Resource(gvr)
	}
	return c.admin.Resource(gvr).Namespace(ns)
}

func (c *cluster) create(t *testing.T, gvr schema.GroupVersionResource, ns string,
	obj map[string]any) *unstructured.Unstructured {
	t.Helper()
	made, err := c.in(gvr, ns).Create(t.Context(), &unstructured.Unstructured{Object: obj}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (c *cluster) get(t *testing.T, gvr schema.GroupVersionResource, ns, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := c.in(gvr, ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// await watches the objects of a kind until ok returns true for the existing ones, by name.
func (c *cluster) await(t *testing.T, what string, gvr schema.GroupVersionResource, ns string,
	ok func(map[string]*unstructured.Unstructured) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		list, err := c.in(gvr, ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		there := map[string]*unstructured.Unstructured{}
		for i := range list.Items {
			there[list.Items[i].GetName()] = &list.Items[i]
		}
		if ok(there) {
			return
		}
		w, err := c.in(gvr, ns).Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		for e := range w.ResultChan() {
			obj, is := e.Object.(*unstructured.Unstructured)
			if !is || e.Type == watch.Error {
				break
			}
			if e.Type == watch.Deleted {
				delete(there, obj.GetName())
			} else {
				there[obj.GetName()] = obj
			}
			if ok(there) {
				w.Stop()
				return
			}
		}
		w.Stop()
	}
	t.Fatalf("waited %s without success for %s", patience, what)
}

func (c *cluster) awaitObject(t *testing.T, gvr schema.GroupVersionResource, ns, name string,
	ok func(*unstructured.Unstructured) bool) {
	t.Helper()
	c.await(t, gvr.Resource+" "+ns+"/"+name, gvr, ns, func(all map[string]*unstructured.Unstructured) bool {
		return all[name] != nil && ok(all[name])
	})
}

func (c *cluster) awaitGone(t *testing.T, gvr schema.GroupVersionResource, ns, name string) {
	t.Helper()
	c.await(t, gvr.Resource+" "+ns+"/"+name+" gone", gvr, ns, func(all map[string]*unstructured.Unstructured) bool {
		return all[name] == nil
	})
}
