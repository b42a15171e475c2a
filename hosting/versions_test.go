//go:build versions

package hosting

import (
	"os"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
)

const previousRelease, presentRelease = "1.35.4", "1.36.3"

// A cluster goes from one minor version of Kubernetes to the next and back, twice, with objects of both. In the soak it
// has the APIs of the version before; after it those of its own, and does not go back. ATOLL_KUBE_PREVIOUS_BIN is the
// program of the version before (kube/previous.sh).
func TestTwoVersionsOfKubernetes(t *testing.T) {
	previous := os.Getenv("ATOLL_KUBE_PREVIOUS_BIN")
	if previous == "" {
		t.Fatal("ATOLL_KUBE_PREVIOUS_BIN is not set; run: make test-versions")
	}
	w := newWorld(t, "versions")
	w.stop()
	w.planes.Binaries[previousRelease] = previous
	w.start()
	key := w.create("one", map[string]any{"release": map[string]any{"image": "atoll.dev/release:" + previousRelease}})
	_, c := w.available(key)
	old := w.apis(key, "v1.35.4")
	w.keep(c, "first")
	w.deploy(c, "first")

	w.order(key, presentRelease)
	hc := w.upgradeIs(key, hypershift.UpgradeSoaks, presentRelease)
	if hc.Status.Upgrade.EmulatedVersion != "1.35" {
		t.Errorf("it emulates %q", hc.Status.Upgrade.EmulatedVersion)
	}
	if got := w.apis(key, "v1.36.3"); !slices.Equal(got, old) {
		t.Errorf("in the soak it has the APIs\n%v\nthe version before has\n%v", got, old)
	}
	_, c = w.available(key)
	w.keep(c, "soaking")
	w.deploy(c, "soaking")

	t.Log("back, with the objects of both")
	w.order(key, previousRelease)
	hc = w.upgradeIs(key, hypershift.UpgradeRolledBack, previousRelease)
	if hc.Status.Upgrade.CopyUsed {
		t.Error("the rollback lost writes")
	}
	w.apis(key, "v1.35.4")
	_, c = w.available(key)
	for _, name := range []string{"first", "soaking"} {
		w.hasConfigMap(c, name)
		w.hasDeployment(c, name)
	}
	w.readsEverything(key)

	t.Log("up again: at the end of the soak it has all APIs of its own")
	w.stop()
	w.options.Upgrades.Soak = 5 * time.Second
	w.start()
	w.order(key, presentRelease)
	w.upgradeIs(key, hypershift.UpgradeCompleted, presentRelease)
	w.wait("the end of the emulation", func() error {
		if o := w.observe(key); o.State != controlplane.Ready || o.LastStart.EmulatedVersion != "" {
			return errStill
		}
		return nil
	})
	if got := w.apis(key, "v1.36.3"); slices.Equal(got, old) {
		t.Error("after the soak it has the APIs of the version before")
	}
	_, c = w.available(key)
	w.hasDeployment(c, "first")
	w.hasDeployment(c, "soaking")
	w.readsEverything(key)
	w.order(key, previousRelease)
	w.condition(key, hypershift.ValidReleaseImage, "False", reasonVersionNotAvailable)
}

// apis returns all resources that a plane offers, and checks the version of its program.
func (w *world) apis(key controlplane.ID, version string) (names []string) {
	w.Helper()
	client := w.discover(key)
	if v, err := client.ServerVersion(); err != nil || v.GitVersion != version {
		w.Errorf("the version is %+v, %v; want %s", v, err, version)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		w.Fatal(err)
	}
	for _, l := range lists {
		for _, r := range l.APIResources {
			names = append(names, l.GroupVersion+"/"+r.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) discover(key controlplane.ID) *discovery.DiscoveryClient {
	w.Helper()
	admin, err := w.h.Client(key)
	if err != nil {
		w.Fatal(err)
	}
	config, err := admin.RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	return client
}

// readsEverything lists the objects of every kind: an object that the plane cannot decode fails its list.
func (w *world) readsEverything(key controlplane.ID) {
	w.Helper()
	lists, err := w.discover(key).ServerPreferredResources()
	if err != nil {
		w.Fatal(err)
	}
	_, c := w.available(key)
	for _, l := range lists {
		group, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			w.Fatal(err)
		}
		for _, r := range l.APIResources {
			if !slices.Contains(r.Verbs, "list") {
				continue
			}
			if _, err := c.Resource(group.WithResource(r.Name)).List(w.Context(), metav1.ListOptions{}); err != nil {
				w.Errorf("%s/%s: %v", l.GroupVersion, r.Name, err)
			}
		}
	}
}

func deployments() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

func (w *world) deploy(c dynamic.Interface, name string) {
	w.Helper()
	d := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": name}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": name}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "example/c"}}}},
		}}}
	_, err := c.Resource(deployments()).Namespace("default").Create(w.Context(), d, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) hasDeployment(c dynamic.Interface, name string) {
	w.Helper()
	if _, err := c.Resource(deployments()).Namespace("default").Get(w.Context(), name, metav1.GetOptions{}); err != nil {
		w.Errorf("a customer's deployment is lost: %v", err)
	}
}
