package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/test/testsite"
)

// The agent sends a status that is too large for the broker without its feedback values, and with
// a condition that has the reason.
func TestAStatusAboveTheBrokersLimitIsReduced(t *testing.T) {
	t.Parallel()
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
		FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
			{Name: "k", Path: ".data.k"}}}},
	}}
	w.server.apply("one", b)
	w.server.await("a status without feedback", func() bool {
		if !w.server.has("one", workv1.WorkAvailable, metav1.ConditionTrue) {
			return false
		}
		m := w.server.bundles["one"].status.ResourceStatus[0]
		c := meta.FindStatusCondition(m.Conditions, conditionFeedback)
		return len(m.StatusFeedbacks.Values) == 0 && c != nil && c.Status == metav1.ConditionFalse &&
			strings.Contains(c.Message, "too large for the message broker")
	})
	// Smaller, it is fed back again.
	b.Manifests[0] = manifests(configMap(w.ns, "a", "k", "y")).Manifests[0]
	w.server.apply("one", b)
	w.server.await("the feedback", func() bool {
		return w.server.has("one", workv1.WorkAvailable, metav1.ConditionTrue) &&
			feedbackOf(w.server.bundles["one"].status.ResourceStatus[0])["k"] == "y"
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
		SourceEvents: parse("sources/other/clusters/+/sourceevents"), AgentEvents: parse(
			"sources/other/clusters/c1/agentevents"), SourceBroadcast: parse("sources/other/sourcebroadcast"),
	}}
	got, err := o.topics()
	if err != nil || got.SourceEvents.String() != "sources/other/clusters/c1/sourceevents" ||
		got.AgentEvents.String() != "sources/other/clusters/c1/agentevents" {
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

// With broadcast topics the agent requests new works from all sources on one topic, and receives a
// source's requests to all agents on the other; it sends statuses to their source. The broker is
// Mosquitto: ours has no broadcasts.
func TestAnAgentBroadcasts(t *testing.T) {
	broker := testsite.StartOpenMosquitto(t)
	run := func(c interface{ Run(context.Context) error }) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); c.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
	}
	await := func(c <-chan string) string {
		select {
		case s := <-c:
			return s
		case <-time.After(testsite.HangLimit):
			t.Fatal("no value within the time limit")
			return ""
		}
	}
	received, up := make(chan string, 10), make(chan string, 1)
	source := bus.NewClient(bus.ClientOptions{Addr: broker, ClientID: "source", Subscriptions: []string{
		"sources/+/clusters/+/agentevents", "clusters/+/agentbroadcast"},
		Handler:     func(_ context.Context, m bus.Message) { m.Ack(); received <- m.Topic + " " + m.Event.Type },
		OnConnected: func(context.Context) { up <- "" }})
	run(source)
	await(up)

	config, err := bus.ParseConfig([]byte("brokerHost: " + broker + `
topics:
  sourceEvents: sources/other/clusters/+/sourceevents
  agentEvents: sources/other/clusters/+/agentevents
  sourceBroadcast: sources/+/sourcebroadcast
  agentBroadcast: clusters/+/agentbroadcast
`))
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{o: Options{Consumer: "c1", Topics: config.Topics}.withDefaults(), inbox: newInbox(),
		log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil),
		wire: wire{consumer: "c1", source: "c1-agent", now: time.Now}}
	a.link = a.newLink(config.Options())
	run(a.link)
	next := func() event { // an event of the core
		for deadline := time.After(testsite.HangLimit); ; {
			for _, ev := range a.inbox.take() {
				return ev
			}
			select {
			case <-a.inbox.ready:
			case <-deadline:
				t.Fatal("no event within 10 s")
			}
		}
	}
	if ev, ok := next().(evConnected); !ok {
		t.Fatalf("%T", ev)
	}
	a.requestSpecs(t.Context(), []work.SpecVersion{{ID: "w1", Version: 1}})
	if got := await(received); got != "clusters/c1/agentbroadcast "+work.SpecResync {
		t.Errorf("the agent asks on %s", got)
	}
	status, err := a.wire.seen(nil)
	if err != nil {
		t.Fatal(err)
	}
	a.publish(t.Context(), status, func(error) {})
	if got := await(received); got != "sources/other/clusters/c1/agentevents "+work.Seen {
		t.Errorf("the agent speaks on %s", got)
	}
	ask := bus.Event{ID: "1", Source: "other", Type: work.StatusResync, DataContentType: "application/json",
		Data: []byte(`{"statusHashes":[]}`), Extensions: map[string]string{work.ExtClusterName: ""}}
	if err := source.Publish(t.Context(), "sources/other/sourcebroadcast", ask); err != nil {
		t.Fatal(err)
	}
	if ev, ok := next().(evStatusResync); !ok {
		t.Errorf("what is asked of all agents comes as %T", ev)
	}
}
