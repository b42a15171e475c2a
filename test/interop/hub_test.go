package interop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	workclientset "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1client "open-cluster-management.io/api/client/work/clientset/versioned/typed/work/v1"
	workinformers "open-cluster-management.io/api/client/work/informers/externalversions"
	workv1 "open-cluster-management.io/api/work/v1"
	workservice "open-cluster-management.io/ocm/pkg/server/services/work"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/payload"
	pbv1 "open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/grpc/protobuf/v1"
	cloudeventsgrpc "open-cluster-management.io/sdk-go/pkg/cloudevents/server/grpc"
)

// hub is OCM's own gRPC hub: its work service on a Kubernetes API with ManifestWorks. Its port is
// plain, as in OCM's tests and development hubs.
type hub struct {
	addr, config string // the port, and a configuration file that leads to it
	works        workv1client.ManifestWorkInterface
}

// foreignWorld returns a world without a region of ours, for tests of foreign programs only.
func foreignWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	return &world{dir: dir, home: filepath.Join(dir, "home")}
}

// startHub starts a hub for one cluster, whose works are in the namespace of its name on the hub's
// Kubernetes API.
func startHub(t *testing.T, kube *cluster, clusterName string) *hub {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kube.admin)
	if err != nil {
		t.Fatal(err)
	}
	installManifestWorks(t, kube)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}
	if _, err := kube.kube(t).CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := workclientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hub serves ManifestWorks", func() error {
		_, err := client.WorkV1().ManifestWorks(clusterName).List(t.Context(), metav1.ListOptions{})
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	informers := workinformers.NewSharedInformerFactory(client, time.Hour)
	broker := cloudeventsgrpc.NewGRPCBroker(cloudeventsgrpc.NewBrokerOptions())
	broker.RegisterService(ctx, payload.ManifestBundleEventDataType, workservice.NewWorkService(client,
		informers.Work().V1().ManifestWorks()))
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pbv1.RegisterCloudEventServiceServer(server, broker)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(sync.OnceFunc(func() { cancel(); server.Stop(); <-done; informers.Shutdown() }))
	h := &hub{addr: l.Addr().String(), config: filepath.Join(t.TempDir(), "grpc.yaml"),
		works: client.WorkV1().ManifestWorks(clusterName)}
	if err := os.WriteFile(h.config, []byte("url: "+h.addr+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// installManifestWorks installs the kind from OCM's own file.
func installManifestWorks(t *testing.T, c *cluster) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "open-cluster-management.io/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)),
		"work/v1/0000_00_work.open-cluster-management.io_manifestworks.crd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.admin)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	kinds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	if _, err := kinds.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func (h *hub) change(t *testing.T, name, value string) {
	t.Helper()
	eventually(t, "the hub takes "+value, func() error {
		work, err := h.works.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		work.Spec.Workload.Manifests = []workv1.Manifest{configMap(name, value)}
		_, err = h.works.Update(t.Context(), work, metav1.UpdateOptions{})
		return err
	})
}

// awaitApplied waits until the hub has the status of the work's present generation.
func (h *hub) awaitApplied(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the hub sees "+name+" applied", func() error {
		work, err := h.works.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range []string{workv1.WorkApplied, workv1.WorkAvailable} {
			c := meta.FindStatusCondition(work.Status.Conditions, condition)
			if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != work.Generation {
				return fmt.Errorf("generation %d has %+v", work.Generation, work.Status.Conditions)
			}
		}
		return nil
	})
}

func (h *hub) awaitGone(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the work "+name+" is gone from the hub", func() error {
		_, err := h.works.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("there is one, or: %v", err)
	})
}

// Behind OCM's own gRPC hub a work has a name beside its id. A cluster moves from OCM's work agent
// to ours and back, over a plain port: each finds the other's AppliedManifestWork by the work's
// name, and creates no object again.
func TestAClusterBehindOCMsHubGoesFromAgentToAgent(t *testing.T) {
	t.Parallel()
	w := foreignWorld(t)
	c := w.cluster(t, "behind-hub")
	h := startHub(t, w.cluster(t, "ocm-hub"), c.name)
	if _, err := h.works.Create(t.Context(), manifestWork("shop", configMap("shop", "ocm-1")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var object, applied types.UID
	check := func(who, value string) {
		t.Helper()
		cm := c.awaitValue(t, "shop", value)
		h.awaitApplied(t, "shop")
		eventually(t, "the one AppliedManifestWork is "+who+"'s", func() error {
			amws := c.appliedWorks(t)
			switch {
			case len(amws) != 1:
				return fmt.Errorf("there are %d", len(amws))
			case !strings.HasSuffix(amws[0].Name, "-shop") || amws[0].Spec.ManifestWorkName != "shop":
				return fmt.Errorf("it is %s, of work %s", amws[0].Name, amws[0].Spec.ManifestWorkName)
			case amws[0].Status.EvictionStartTime != nil:
				return errors.New("it waits for its eviction")
			case len(amws[0].Status.AppliedResources) != 1:
				return fmt.Errorf("it lists %+v", amws[0].Status.AppliedResources)
			case len(cm.OwnerReferences) != 1 || cm.OwnerReferences[0].UID != amws[0].UID:
				return fmt.Errorf("it is %s, the object has the owners %+v", amws[0].UID, cm.OwnerReferences)
			}
			if applied != "" && applied != amws[0].UID {
				t.Errorf("%s made the AppliedManifestWork anew", who)
			}
			applied = amws[0].UID
			return nil
		})
		if object != "" && object != cm.UID {
			t.Errorf("%s made the object anew", who)
		}
		object = cm.UID
	}

	stop := startWorkAgentOn(t, c, byGRPC, h.config)
	check("OCM's agent", "ocm-1")
	stop()
	ours := w.startAgentOn(t, c, "--workload-source-driver", "grpc", "--workload-source-config", h.config)
	h.change(t, "shop", "ours-2")
	check("our agent", "ours-2")
	if err := ours.stop(); err != nil {
		t.Fatal(err)
	}
	stop = startWorkAgentOn(t, c, byGRPC, h.config)
	h.change(t, "shop", "ocm-3")
	check("OCM's agent again", "ocm-3")
	stop()
	w.startAgentOn(t, c, "--workload-source-driver", "grpc", "--workload-source-config", h.config)
	if err := h.works.Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitAbsence(t, "shop")
	h.awaitGone(t, "shop")
	if left := c.appliedWorks(t); len(left) > 0 {
		t.Errorf("AppliedManifestWorks are left: %+v", left)
	}
}

// Two agents of ours with different hubs serve one cluster: a shared object stays until the last of
// them removes its owner reference.
func TestTwoAgentsOfOursServeOneCluster(t *testing.T) {
	t.Parallel()
	w := foreignWorld(t)
	c := w.cluster(t, "two-hubs")
	kube := w.cluster(t, "two-hubs-hub")
	var hubs []*hub
	for i := range 2 {
		as := *c
		as.name = fmt.Sprint("two-hubs-", i)
		h := startHub(t, kube, as.name)
		if _, err := h.works.Create(t.Context(), manifestWork("both", configMap("both", "1")),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.startAgentOn(t, &as, "--workload-source-driver", "grpc", "--workload-source-config", h.config)
		h.awaitApplied(t, "both")
		hubs = append(hubs, h)
	}
	var uid types.UID
	owned := func(by int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d agents own the object", by), func() error {
			cm, err := c.configMap(t, "both")
			switch {
			case err != nil:
				return err
			case len(cm.OwnerReferences) != by:
				return fmt.Errorf("its owners are %+v", cm.OwnerReferences)
			case uid != "" && uid != cm.UID:
				t.Error("the object was made anew")
			}
			uid = cm.UID
			return nil
		})
	}
	owned(2)
	for i, h := range hubs {
		if err := h.works.Delete(t.Context(), "both", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		h.awaitGone(t, "both")
		if i == 0 {
			owned(1)
		}
	}
	c.awaitAbsence(t, "both")
}
