package agent

import (
	"encoding/json"
	"log/slog"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/api/work"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// patience limits every wait of a test; only a hang exceeds it.
const patience = 3 * time.Minute

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// running is an agent that serves.
type running struct {
	*Agent
	stop func()
}

func agentOptions(t testing.TB, c *cluster, b *testsite.Broker, consumer work.Consumer, dir string) Options {
	level := slog.LevelWarn
	if os.Getenv("AGENT_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return Options{
		Consumer: consumer, Kube: c.agent, Bus: b.ClientOptions(pki.Name(consumer)), BrokerHost: "broker.test:" +
			string(consumer), DataDir: dir,
		Log:       slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level})),
		ListAfter: 20 * time.Millisecond, // the test's server compares no digests
	}
}

// startAgent runs an agent, after change has changed it.
func startAgent(t testing.TB, o Options, change ...func(*Agent)) *running {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(a)
	}
	return &running{Agent: a, stop: testsite.Run(t, "the agent", a.Run)}
}

// world is an agent, its cluster, and a broker with the test's server of its works.
type world struct {
	*cluster
	site     *testsite.Site
	ns       string
	consumer work.Consumer
	broker   *testsite.Broker
	server   *server
	dir      string
	agent    *running
}

// newSite returns a world of a cluster without an agent.
func newSite(t *testing.T, c *cluster, ns string, consumer work.Consumer) *world {
	t.Helper()
	w := &world{cluster: c, site: testsite.New(t), ns: ns, consumer: consumer, dir: t.TempDir()}
	w.broker = w.site.StartBroker()
	w.server = startServer(t, w.broker, consumer)
	return w
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c, ns := sharedCluster(t)
	w := newSite(t, c, ns, work.Consumer(ns))
	w.agent = startAgent(t, agentOptions(t, c, w.broker, w.consumer, w.dir))
	t.Cleanup(func() {
		if t.Failed() {
			w.logFailure(t)
		}
	})
	return w
}

func (w *world) restart(t *testing.T) {
	t.Helper()
	w.agent.stop()
	w.agent = startAgent(t, agentOptions(t, w.cluster, w.broker, w.consumer, w.dir))
}

func (w *world) amw(id work.ID) string {
	return hubHash("broker.test:"+string(w.consumer)) + "-" + string(id)
}

func configMap(ns, name string, data ...string) json.RawMessage {
	m := map[string]string{}
	for i := 0; i+1 < len(data); i += 2 {
		m[data[i]] = data[i+1]
	}
	return raw(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name,
		"namespace": ns}, "data": m})
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func manifests(m ...json.RawMessage) work.Bundle { return work.Bundle{Manifests: m} }

func dataOf(u *unstructured.Unstructured, key string) string {
	v, _, _ := unstructured.NestedString(u.Object, "data", key)
	return v
}
