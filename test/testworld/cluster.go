package testworld

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/hosting"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// Cluster is a management cluster.
type Cluster struct {
	Admin   *rest.Config
	Objects dynamic.Interface // of the administrator
	Agent   *Agent            // nil outside of a World
	Plane   plane.Config      // of its API server

	t testing.TB
}

// SharedCluster returns the API server of planetest.Shared as a management cluster without an agent.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	return newCluster(t, planetest.Shared(t))
}

func newCluster(t testing.TB, p *plane.Process) *Cluster {
	t.Helper()
	c := &Cluster{Plane: p.Config, t: t}
	var err error
	if c.Admin, err = p.Config.RESTConfig(); err != nil {
		t.Fatal(err)
	}
	c.Admin.QPS, c.Admin.Burst = 1000, 1000
	if c.Objects, err = dynamic.NewForConfig(c.Admin); err != nil {
		t.Fatal(err)
	}
	return c
}

// AddHosting creates the kinds and the account of hosting. It returns the configuration with which the account calls.
func (c *Cluster) AddHosting() *rest.Config {
	c.t.Helper()
	kubeconfig, err := hosting.Bootstrap(c.t.Context(), c.Admin, hosting.BootstrapOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		c.t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// Create creates an object. It waits for its prerequisites: a kind, a namespace, an account.
func (c *Cluster) Create(kind schema.GroupVersionResource, namespace string, object map[string]any) {
	c.t.Helper()
	testsite.Eventually(c.t, "creating "+kind.Resource, func() error {
		_, err := c.In(kind, namespace).Create(c.t.Context(), &unstructured.Unstructured{Object: object},
			metav1.CreateOptions{})
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			c.t.Fatal(err)
		}
		return err
	})
}

// CreateNamespace creates a namespace.
func (c *Cluster) CreateNamespace(name string) {
	c.t.Helper()
	c.Create(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", map[string]any{"apiVersion": "v1",
		"kind": "Namespace", "metadata": map[string]any{"name": name}})
}

// Object returns an object of a management cluster; namespace is "" for one outside of namespaces.
func (c *Cluster) Object(kind schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	return c.In(kind, namespace).Get(c.t.Context(), name, metav1.GetOptions{})
}

// In returns the objects of a kind in a namespace, or outside of namespaces if namespace is "".
func (c *Cluster) In(kind schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return c.Objects.Resource(kind)
	}
	return c.Objects.Resource(kind).Namespace(namespace)
}
