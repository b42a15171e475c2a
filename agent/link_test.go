package agent

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/bus"
)

// A status that the broker does not take goes without what is fed back, and
// says so.
func TestAStatusOverTheBrokersLimit(t *testing.T) {
	w := newWorld(t)
	w.agent.stop()
	o := agentOptions(t, w.cluster, w.broker, w.consumer, w.dir)
	o.Bus.MaxMessage = 8000
	w.server.mu.Lock()
	w.server.reduced = true
	w.server.mu.Unlock()
	w.agent = startAgent(t, o)
	b := manifests(configMap(w.ns, "a", "k", strings.Repeat("x", 10_000)))
	b.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: w.ns, Name: "a"},
		FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "k", Path: ".data.k"}}}},
	}}
	w.server.apply("one", b)
	w.server.await("a status without feedback", func() bool {
		if !w.server.has("one", workv1.WorkAvailable, metav1.ConditionTrue) {
			return false
		}
		m := w.server.bundles["one"].status.ResourceStatus[0]
		c := meta.FindStatusCondition(m.Conditions, conditionFeedback)
		return len(m.StatusFeedbacks.Values) == 0 && c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "too large for the message broker")
	})
	// Smaller, it is fed back again.
	b.Manifests[0] = manifests(configMap(w.ns, "a", "k", "y")).Manifests[0]
	w.server.apply("one", b)
	w.server.await("the feedback", func() bool {
		return w.server.has("one", workv1.WorkAvailable, metav1.ConditionTrue) && feedbackOf(w.server.bundles["one"].status.ResourceStatus[0])["k"] == "y"
	})
}

// An agent uses the topics that its file names, written with its name or not.
func TestTheTopicsOfAnAgent(t *testing.T) {
	parse := func(s string) bus.Topic {
		topic, err := bus.ParseTopic(s)
		if err != nil {
			t.Fatal(err)
		}
		return topic
	}
	o := Options{Consumer: "c1", Topics: bus.Topics{
		SourceEvents: parse("sources/other/clusters/+/sourceevents"), AgentEvents: parse("sources/other/clusters/c1/agentevents"), SourceBroadcast: parse("sources/other/sourcebroadcast"),
	}}
	got, err := o.topics()
	if err != nil || got.SourceEvents.String() != "sources/other/clusters/c1/sourceevents" || got.AgentEvents.String() != "sources/other/clusters/c1/agentevents" {
		t.Errorf("%+v, %v", got, err)
	}
	o.Consumer = "c2"
	if _, err := o.topics(); err == nil {
		t.Error("an agent takes another one's topics")
	}
	o.Topics = bus.Topics{}
	if got, err := o.topics(); err != nil || got.AgentEvents.String() != "sources/maestro/consumers/c2/agentevents" {
		t.Errorf("%+v, %v", got, err)
	}
}
