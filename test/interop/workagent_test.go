package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	workclientset "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"
)

// configMap is a manifest.
func configMap(name, value string) workv1.Manifest {
	return workv1.Manifest{RawExtension: runtime.RawExtension{Raw: fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"value":%q}}`, name,
		value)}}
}

func manifestWork(name string, manifests ...workv1.Manifest) *workv1.ManifestWork {
	return &workv1.ManifestWork{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "interop"}},
		Spec:       workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: manifests}},
	}
}

// patch changes the works's manifests as clients do, by a merge patch.
func (s *source) patch(cluster, name string, generation int64, manifests ...workv1.Manifest) error {
	body := map[string]any{"spec": workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: manifests}}}
	if generation > 0 {
		body["metadata"] = map[string]any{"generation": generation, "resourceVersion": fmt.Sprint(generation)}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = s.at(cluster).Patch(context.Background(), name, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}

func (c *cluster) kube(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.admin)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (c *cluster) appliedWorks(t *testing.T) []workv1.AppliedManifestWork {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.admin)
	if err != nil {
		t.Fatal(err)
	}
	client, err := workclientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.WorkV1().AppliedManifestWorks().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (c *cluster) configMap(t *testing.T, name string) (*corev1.ConfigMap, error) {
	return c.kube(t).CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
}

func (c *cluster) awaitValue(t *testing.T, name, value string) *corev1.ConfigMap {
	t.Helper()
	var found *corev1.ConfigMap
	eventually(t, fmt.Sprintf("%s has %s=%s", c.name, name, value), func() error {
		cm, err := c.configMap(t, name)
		if err == nil && cm.Data["value"] != value {
			err = fmt.Errorf("it has %v", cm.Data)
		}
		found = cm
		return err
	})
	return found
}

func (c *cluster) awaitAbsence(t *testing.T, name string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has no %s", c.name, name), func() error {
		_, err := c.configMap(t, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("there is one, or: %v", err)
	})
}

// bundle has the members of REST's answer about a work that tests use.
type bundle struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	ConsumerName string          `json:"consumer_name"`
	Version      int64           `json:"version"`
	CreatedAt    string          `json:"created_at"`
	DeletedAt    string          `json:"deleted_at"`
	Metadata     json.RawMessage `json:"metadata"`
	Status       struct {
		ObservedVersion int64
		SequenceID      string
		Conditions      []metav1.Condition         `json:"conditions"`
		ResourceStatus  []workv1.ManifestCondition `json:"resourceStatus"`
	} `json:"status"`
}

func (s *server) bundle(t *testing.T, id types.UID) bundle {
	t.Helper()
	var b bundle
	s.callREST(t, "GET", "/v1/resource-bundles/"+string(id), "", http.StatusOK, &b)
	return b
}

// The life of a work, from OCM's source client through our server to OCM's work agent and back, by
// each transport of an agent.
func TestOCMsWorkAgentServesOurServer(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	for _, way := range []struct {
		name   string
		server *server
		driver way
		addr   string
	}{
		{"by our broker", w.embedded, byMQTT, w.embedded.broker},
		{"by Mosquitto", w.mosquitto, byMQTT, w.mosquitto.broker},
		{"by gRPC", w.mosquitto, byGRPC, w.mosquitto.agents},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			name := map[string]string{"by our broker": "ocm-embedded", "by Mosquitto": "ocm-mosquitto",
				"by gRPC": "ocm-grpc"}[way.name]
			s, c := way.server, w.cluster(t, name)
			s.consumer(t, name)
			src := s.startSource(t, "source-"+name, byGRPC, s.grpc, s.platform)

			// A work that is ordered before the agent's first connection.
			made, err := src.at(name).Create(t.Context(), manifestWork("early", configMap("early", "1")),
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			stop := s.startWorkAgent(t, c, way.driver, way.addr)
			early := c.awaitValue(t, "early", "1")
			src.awaitCondition(name, "early", workv1.WorkApplied, metav1.ConditionTrue, 1)
			got := src.awaitCondition(name, "early", workv1.WorkAvailable, metav1.ConditionTrue, 1)
			if m := got.Status.ResourceStatus.Manifests; len(m) != 1 || m[0].ResourceMeta.Name != "early" ||
				!meta.IsStatusConditionTrue(m[0].Conditions, workv1.ManifestApplied) {
				t.Errorf("status of the manifests: %+v", m)
			}
			b := s.bundle(t, made.UID)
			if b.Version != 1 || b.Status.ObservedVersion != 1 || b.Status.SequenceID == "" || b.ConsumerName != name {
				t.Errorf("REST says %+v", b)
			}

			// A change: a second manifest is added and the first one's value changes.
			if err := src.patch(name, "early", 0, configMap("early", "2"), configMap("late", "1")); err != nil {
				t.Fatal(err)
			}
			if cm := c.awaitValue(t, "early", "2"); cm.UID != early.UID {
				t.Error("the change made the ConfigMap anew")
			}
			late := c.awaitValue(t, "late", "1")
			src.awaitCondition(name, "early", workv1.WorkApplied, metav1.ConditionTrue, 2)

			// The agent is away during a change and a deletion of a manifest, and returns without its
			// memory.
			stop()
			if err := src.patch(name, "early", 0, configMap("late", "3")); err != nil {
				t.Fatal(err)
			}
			s.startWorkAgent(t, c, way.driver, way.addr)
			if cm := c.awaitValue(t, "late", "3"); cm.UID != late.UID {
				t.Error("the agent's restart made the ConfigMap anew")
			}
			c.awaitAbsence(t, "early")
			src.awaitCondition(name, "early", workv1.WorkApplied, metav1.ConditionTrue, 3)
			for _, amw := range c.appliedWorks(t) {
				if amw.Status.EvictionStartTime != nil {
					t.Errorf("AppliedManifestWork %s waits for its eviction", amw.Name)
				}
			}

			// The end.
			if err := src.at(name).Delete(t.Context(), "early", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			c.awaitAbsence(t, "late")
			src.awaitGone(name, "early")
			eventually(t, "the bundle is gone", func() error {
				if status, body := s.call(t, "GET", "/v1/resource-bundles/"+string(made.UID),
					""); status != http.StatusNotFound {
					return fmt.Errorf("%d %s", status, body)
				}
				return nil
			})
			if left := c.appliedWorks(t); len(left) > 0 {
				t.Errorf("AppliedManifestWorks are left: %+v", left)
			}
		})
	}
}
