package hosting

import (
	"crypto/rand"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/plane/planetest"
)

// administrator is all rights in the management cluster that the package's
// tests share.
func administrator(t *testing.T) *rest.Config {
	t.Helper()
	config, err := planetest.Shared(t).Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, 0
	return config
}

// accountConfig is hosting's own way into the management cluster.
func accountConfig(t *testing.T) *rest.Config {
	t.Helper()
	kubeconfig, err := Bootstrap(t.Context(), administrator(t), BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, 0
	return config
}

func client(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func namespaces() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
}

func makeNamespace(t *testing.T, admin dynamic.Interface, name string) {
	t.Helper()
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name}}}
	if _, err := admin.Resource(namespaces()).Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestBootstrapGivesHostingExactlyTheRequiredRights(t *testing.T) {
	admin := client(t, administrator(t))
	if _, err := Bootstrap(t.Context(), administrator(t),
		BootstrapOptions{PullSecret: []byte(`{"auths":{"example":{"auth":"YTpi"}}}`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := Bootstrap(t.Context(), administrator(t), BootstrapOptions{}); err != nil {
		t.Fatalf("the second time: %v", err)
	}
	pull, err := admin.Resource(secrets()).Namespace("atoll-hosting").Get(t.Context(), pullSecretName,
		metav1.GetOptions{})
	if err != nil || string(secretValue(pull, dockerConfigKey)) != `{"auths":{"example":{"auth":"YTpi"}}}` {
		t.Errorf("the pull secret is %v, %v: a second bootstrap without one keeps it", pull, err)
	}
	if _, err := Bootstrap(t.Context(), administrator(t), BootstrapOptions{PullSecret: []byte("no JSON")}); err == nil {
		t.Error("a pull secret that is no JSON was taken")
	}

	hosting := client(t, accountConfig(t))
	get := func(namespace, name string) error {
		_, err := hosting.Resource(secrets()).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
		return err
	}
	if err := get("atoll-hosting", pullSecretName); err != nil {
		t.Errorf("hosting may not read the pull secret: %v", err)
	}
	for _, s := range [][2]string{{"atoll-hosting", "anything"}, {"default", "anything"}} {
		if err := get(s[0], s[1]); !apierrors.IsForbidden(err) {
			t.Errorf("reading secret %s/%s: %v, want forbidden", s[0], s[1], err)
		}
	}
	_, err = hosting.Resource(configMaps()).Namespace("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("reading a ConfigMap: %v", err)
	}
	_, err = hosting.Resource(configMaps()).Namespace("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("listing ConfigMaps: %v, want forbidden", err)
	}
	if _, err := hosting.Resource(namespaces()).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing namespaces: %v, want forbidden", err)
	}
	err = hosting.Resource(hypershift.HostedClusters()).Namespace("default").Delete(t.Context(), "any",
		metav1.DeleteOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("deleting a HostedCluster: %v, want forbidden", err)
	}
}

func TestUnknownFieldsOfAHostedClusterAreKept(t *testing.T) {
	accountConfig(t)
	admin := client(t, administrator(t))
	namespace := "clusters-" + strings.ToLower(rand.Text()[:6]) // the test may run more than once
	makeNamespace(t, admin, namespace)
	hc := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster",
		"metadata": map[string]any{"name": "hc-fields"},
		"spec": map[string]any{
			"release": map[string]any{"image": "atoll.dev/release:0.0.0"}, "pausedUntil": "true",
			"platform": map[string]any{"type": "AWS", "aws": map[string]any{"region": "eu-west-1",
				"rolesRef": map[string]any{"ingressARN": "arn:1"}}},
		},
	}}
	c := admin.Resource(hypershift.HostedClusters()).Namespace(namespace)
	got, err := c.Create(t.Context(), hc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if arn, _, _ := unstructured.NestedString(got.Object, "spec", "platform", "aws", "rolesRef",
		"ingressARN"); arn != "arn:1" {
		t.Errorf("the spec came back as %v", got.Object["spec"])
	}
}
