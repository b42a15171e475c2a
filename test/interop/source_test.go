package interop

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// managed is the management cluster that the region made, with our agent in it.
func (w *world) managed() *cluster {
	dir := filepath.Join(w.home, "management", "management-01", "plane")
	return &cluster{name: "management-01", dir: dir, admin: filepath.Join(dir, "admin.kubeconfig")}
}

// OCM's source client, by gRPC through the region's Maestro, with our agent: a work is created, changed, deleted and
// created again, and the source gets conditions and feedback of each version.
func TestOCMsSourceClientOrdersFromOurRegion(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s, c := w.embedded, w.managed()
	src := s.startSource(t, "source-region", byGRPC, s.grpc, s.platform)
	order := manifestWork("region-work", configMap("region-work", "1"))
	order.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Name: "region-work",
			Namespace: "default"},
		FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
			{Name: "value", Path: ".data.value"}}}},
		UpdateStrategy: &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply},
	}}
	made, err := src.at(c.name).Create(t.Context(), order, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := c.awaitValue(t, "region-work", "1")
	src.awaitCondition(c.name, "region-work", workv1.WorkApplied, metav1.ConditionTrue, 1)
	src.awaitCondition(c.name, "region-work", workv1.WorkAvailable, metav1.ConditionTrue, 1)
	feedback := func(want string) {
		t.Helper()
		eventually(t, "the source gets the feedback "+want, func() error {
			m := src.work(c.name, "region-work").Status.ResourceStatus.Manifests
			if len(m) != 1 || len(m[0].StatusFeedbacks.Values) != 1 ||
				m[0].StatusFeedbacks.Values[0].Value.String == nil {
				return fmt.Errorf("it has %+v", m)
			}
			if got := *m[0].StatusFeedbacks.Values[0].Value.String; got != want {
				return fmt.Errorf("it has %s", got)
			}
			return nil
		})
	}
	feedback("1")
	if err := src.at(c.name).Delete(t.Context(), "nobody-made-this", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting what is not there: %v", err)
	}
	body, _ := json.Marshal(map[string]any{"spec": map[string]any{"workload": map[string]any{
		"manifests": []workv1.Manifest{configMap("region-work", "2")}}}})
	if _, err := src.at(c.name).Patch(t.Context(), "region-work", "application/merge-patch+json", body,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if cm := c.awaitValue(t, "region-work", "2"); cm.UID != first.UID {
		t.Error("the change made the ConfigMap anew")
	}
	src.awaitCondition(c.name, "region-work", workv1.WorkApplied, metav1.ConditionTrue, 2)
	feedback("2")
	if err := src.at(c.name).Delete(t.Context(), "region-work", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitAbsence(t, "region-work")
	src.awaitGone(c.name, "region-work")
	if status, data := s.call(t, "GET", "/v1/resource-bundles/"+string(made.UID), ""); status != http.StatusNotFound {
		t.Errorf("after the end: %d %s", status, data)
	}

	// The client ignores statuses of versions above the generation that it knows. A work that is created again begins
	// with 1 in its eyes, so in ours, too.
	if _, err := src.at(c.name).Create(t.Context(), manifestWork("region-work", configMap("region-work", "3")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitValue(t, "region-work", "3")
	src.awaitCondition(c.name, "region-work", workv1.WorkApplied, metav1.ConditionTrue, 1)
}

// A refusal of the server arrives in OCM's source client as the corresponding Kubernetes error,
// with the original's text, for which programs search.
func TestOCMsSourceClientUnderstandsRefusals(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s, name := w.mosquitto, "refusals"
	s.consumer(t, name)
	src := s.startSource(t, "source-refusals", byGRPC, s.grpc, s.platform)
	if _, err := src.at(name).Create(t.Context(), manifestWork("once", configMap("once", "1")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantError := func(what string, err error, kind func(error) bool, texts ...string) {
		t.Helper()
		if err == nil || !kind(err) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q lacks %q", what, err, text)
			}
		}
	}
	// A second process of the same source, with an empty cache, creates the same work with the same
	// id.
	again := s.startSource(t, "source-refusals", byGRPC, s.grpc, s.platform)
	_, err := again.at(name).Create(t.Context(), manifestWork("once", configMap("once", "1")), metav1.CreateOptions{})
	wantError("a second create", err, apierrors.IsAlreadyExists, "maestro-6", "already exists")

	_, err = src.at("nowhere").Create(t.Context(), manifestWork("lost", configMap("lost", "1")), metav1.CreateOptions{})
	wantError("a create for an unknown cluster", err, apierrors.IsInvalid, `"nowhere"`, "maestro-8")

	if err := src.patch(name, "once", 1, configMap("once", "2")); err != nil {
		t.Fatalf("a change of the newest version: %v", err)
	}
	err = src.patch(name, "once", 1, configMap("once", "3"))
	wantError("a change of an old version", err, apierrors.IsConflict, "the resource version is not the latest",
		"maestro-6")

	other := s.startSource(t, "source-other", byGRPC, s.grpc, s.platform)
	foreign := manifestWork("once", configMap("once", "4"))
	foreign.UID = src.work(name, "once").UID
	foreign.Namespace = name
	if err := other.informer.Informer().GetStore().Add(foreign); err != nil {
		t.Fatal(err)
	}
	err = other.patch(name, "once", 0, configMap("once", "5"))
	wantError("a change by another source", err, apierrors.IsForbidden)
}

// A restarted source reads its works by REST, with the search of the original's source client, and
// receives their statuses: the SDK's resync with its works.
func TestARestartedSourceReceivesAllStatuses(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.mosquitto
	names := []string{"again-a", "again-b"}
	first := s.startSource(t, "source-again", byGRPC, s.grpc, s.platform)
	for _, name := range names {
		s.consumer(t, name)
		made, err := first.at(name).Create(t.Context(), manifestWork("kept", configMap("kept", "1")),
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		agent := s.startAgentClient(t, name, byMQTT, s.broker)
		agent.report(t, agent.awaitWork(t, "the work", generationIs(made.UID, 1)), appliedStatus(1, "of "+name))
		first.awaitCondition(name, "kept", workv1.WorkApplied, metav1.ConditionTrue, 1)
	}
	first.stop()

	second := s.startSource(t, "source-again", byGRPC, s.grpc, s.platform)
	var list struct {
		Total int      `json:"total"`
		Items []bundle `json:"items"`
	}
	search := "source='source-again' and (consumer_name='again-a' or consumer_name='again-b')"
	s.callREST(t, "GET", "/v1/resource-bundles?page=1&size=400&search="+url.QueryEscape(search), "", http.StatusOK, &list)
	if list.Total != 2 || len(list.Items) != 2 {
		t.Fatalf("the list has %d works: %+v", list.Total, list.Items)
	}
	for _, b := range list.Items {
		work := manifestWork("")
		if err := json.Unmarshal(b.Metadata, &work.ObjectMeta); err != nil {
			t.Fatal(err)
		}
		if work.Name != "kept" || string(work.UID) != b.ID || work.Labels["app"] != "interop" {
			t.Errorf("the bundle's metadata are %s", b.Metadata)
		}
		work.Namespace, work.Generation, work.ResourceVersion = b.ConsumerName, b.Version, fmt.Sprint(b.Version)
		if err := second.informer.Informer().GetStore().Add(work); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		got := second.awaitCondition(name, "kept", workv1.WorkApplied, metav1.ConditionTrue, 1)
		if m := got.Status.Conditions[0].Message; m != "of "+name {
			t.Errorf("%s has the status %q", name, m)
		}
	}
}

// OCM's source client over MQTT, with no server between, against our agent: the protocol of Open Cluster Management as
// such. The source answers the agent's list itself, and orders what it does not know to be deleted, without data.
func TestOurAgentServesOCMsSourceClientOverMQTT(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	c := w.cluster(t, "direct")
	broker, err := w.startMosquitto("mosquitto-direct")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{world: w, broker: broker}
	id := w.identity(t, "system:maestro")
	src := s.startSource(t, "maestro", byMQTT, broker, id)
	// Ordered before the agent connects, and not kept by the broker: the agent's resync finds it.
	if _, err := src.at("direct").Create(t.Context(), manifestWork("direct", configMap("direct", "1")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := w.observe(t, broker)
	agent := s.startAgent(t, c)
	list := o.next(t, "sources/maestro/consumers/direct/agentevents", "spec.resync_request")
	props := properties(t, list)
	if v, there := props["ce-originalsource"]; !there || v != "" || props["ce-clustername"] != "direct" ||
		props["ce-source"] != "direct-agent" {
		t.Errorf("the agent's list has %v; the original source must be there and empty", props)
	}
	if string(list.Payload) != `{"resourceVersions":[]}` {
		t.Errorf("a new agent lists %s", list.Payload)
	}
	first := c.awaitValue(t, "direct", "1")
	src.awaitCondition("direct", "direct", workv1.WorkApplied, metav1.ConditionTrue, 0)
	src.awaitCondition("direct", "direct", workv1.WorkAvailable, metav1.ConditionTrue, 0)
	if err := src.patch("direct", "direct", 1, configMap("direct", "2")); err != nil {
		t.Fatal(err)
	}
	if cm := c.awaitValue(t, "direct", "2"); cm.UID != first.UID {
		t.Error("the change made the ConfigMap anew")
	}
	src.awaitCondition("direct", "direct", workv1.WorkApplied, metav1.ConditionTrue, 1)

	if _, err := src.at("direct").Create(t.Context(), manifestWork("short", configMap("short", "1")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitValue(t, "short", "1")
	src.awaitCondition("direct", "short", workv1.WorkApplied, metav1.ConditionTrue, 0)
	if err := src.at("direct").Delete(t.Context(), "short", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitAbsence(t, "short")
	src.awaitGone("direct", "short")

	// The source restarts with only another work; the agent sends its list.
	if err := agent.stop(); err != nil {
		t.Fatal(err)
	}
	src.stop()
	src = s.startSource(t, "maestro", byMQTT, broker, id)
	if _, err := src.at("direct").Create(t.Context(), manifestWork("other", configMap("other", "1")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.startAgent(t, c)
	c.awaitValue(t, "other", "1")
	c.awaitAbsence(t, "direct")
	for {
		m := o.next(t, "sources/maestro/consumers/direct/sourceevents", "spec.resync_response")
		if props := properties(t, m); props["ce-deletiontimestamp"] != "" {
			if len(m.Payload) > 0 {
				t.Errorf("OCM's deletion of an unknown work had data: %s", m.Payload)
			}
			break
		}
	}
	eventually(t, "one AppliedManifestWork is left", func() error {
		amws := c.appliedWorks(t)
		if len(amws) != 1 {
			return fmt.Errorf("there are %d", len(amws))
		}
		if hub := sha256Hex(broker); !strings.HasPrefix(amws[0].Name, hub+"-") || amws[0].Spec.HubHash != hub {
			return fmt.Errorf("%s, hub hash %s: want those of the broker's host as it is written, %s", amws[0].Name,
				amws[0].Spec.HubHash, hub)
		}
		return nil
	})
}
