package maestro

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"
)

func (i *instance) awaitGone(id work.ID) {
	i.t.Helper()
	eventually(i.t, string(id)+" is gone", func() error {
		if a := i.call("GET", "/api/maestro/v1/resource-bundles/"+string(id), ""); a.status != 404 {
			return fmt.Errorf("status %d", a.status)
		}
		return nil
	})
}

func (i *instance) awaitObserved(id work.ID, version int64) {
	i.t.Helper()
	eventually(i.t, fmt.Sprintf("%s is observed at %d", id, version), func() error {
		if v := i.bundle(id).Status.ObservedVersion; v != version {
			return fmt.Errorf("it is at %d", v)
		}
		return nil
	})
}

func (i *instance) unknown(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(i.text(`select count(*)::text from unknown_work`))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// No broker is anywhere: works, statuses, deletions go by gRPC alone, and
// writes are taken.
func TestI6AnAgentByGRPCNeedsNoBroker(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	site.broker.Stop()
	m := site.start(withAgents(site), alone, func(o *Options) { o.Heartbeat = 20 * time.Millisecond })
	m.consumer("mc1")
	src := m.source()
	src.create("mc1", "w1", "one") // before the agent ever came
	agent := m.grpcAgent("mc1")
	agent.awaitValue("w1", "one")
	m.awaitObserved("w1", 1)
	src.create("mc1", "w2", "two")
	src.update("mc1", "w1", "three")
	agent.awaitValue("w2", "two")
	agent.awaitValue("w1", "three")
	m.awaitObserved("w1", 2)
	if got := firstDeliveries(agent.received(work.SpecUpdate)); len(got) != 1 || got[0].Extensions[work.ExtMetadata] == "" ||
		!strings.Contains(got[0].Extensions[work.ExtMetadata], `"name":"w1"`) {
		t.Errorf("updates %+v", got)
	}
	src.remove("mc1", "w1")
	m.awaitGone("w1")
	if got := firstDeliveries(agent.received(work.SpecDelete)); len(got) != 1 || len(got[0].Data) == 0 ||
		got[0].Extensions[work.ExtDeletionTimestamp] == "" {
		t.Errorf("deletions %+v", got)
	}
	eventually(t, "heartbeats", func() error {
		agent.link.mu.Lock()
		defer agent.link.mu.Unlock()
		if agent.link.beats < 3 {
			return fmt.Errorf("%d", agent.link.beats)
		}
		return nil
	})
	if len(agent.link.refused) > 0 {
		t.Errorf("refused: %v", agent.link.refused)
	}
}

// An agent that is away misses nothing, and one that comes back without a
// change is sent nothing.
func TestI6AnAgentByGRPCResyncs(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site), alone)
	m.consumer("mc1")
	src := m.source()
	agent := m.grpcAgent("mc1")
	for n := range 30 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), 1)
	}
	for n := range 30 {
		m.awaitObserved(work.ID(fmt.Sprintf("w%d", n)), 1)
	}
	agent.stop()
	src.update("mc1", "w3", "new")
	src.remove("mc1", "w4")
	src.create("mc1", "w30", 1)
	agent.fault(func() { agent.events = nil })
	agent.startGRPC()
	agent.awaitValue("w3", "new")
	agent.awaitValue("w30", 1)
	m.awaitGone("w4")
	m.awaitObserved("w3", 2)
	m.awaitObserved("w30", 1)
	// What is new may come twice, with the feed and since the agent's list lacks
	// it; what is not new does not come at all.
	onlyOf := func(ids ...work.ID) {
		t.Helper()
		for _, kind := range []string{work.SpecCreate, work.SpecUpdate, work.SpecDelete, work.SpecResyncResponse} {
			for _, ev := range agent.received(kind) {
				if id := ev.Extensions[work.ExtResourceID]; !slices.Contains(ids, work.ID(id)) {
					t.Errorf("%s was sent although nothing about it is new", id)
				}
			}
		}
	}
	onlyOf("w3", "w4", "w30")
	agent.stop()
	agent.fault(func() { agent.events = nil })
	agent.startGRPC()
	src.create("mc1", "w31", 1)
	m.awaitObserved("w31", 1)
	onlyOf("w31")
	// Its store is lost: it gets everything.
	agent.stop()
	agent.wipe()
	agent.startGRPC()
	eventually(t, "all works are back", func() error {
		if n := agent.count(); n != 31 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// A lost status is asked for.
func TestI6AStatusThatWasLostIsAskedForByGRPC(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site), alone, func(o *Options) { o.RetryBase = 50 * time.Millisecond })
	m.consumer("mc1")
	agent := m.grpcAgent("mc1")
	agent.fault(func() { agent.mute = true })
	m.source().create("mc1", "w1", 1)
	agent.awaitValue("w1", 1)
	agent.fault(func() { agent.mute = false })
	m.awaitObserved("w1", 1)
}

// What nobody knows is left alone, is counted, and is taken over when a source
// orders it again.
func TestI8UnknownWorksOfAGRPCAgentStay(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site), alone)
	m.consumer("mc1")
	agent := m.grpcAgent("mc1")
	agent.stop()
	agent.works["stranger"] = &agentWork{generation: 7, data: specData(configMap("x", "old")), status: []byte(`{}`),
		hash: "h"}
	agent.startGRPC()
	eventually(t, "it is counted", func() error {
		if n := m.unknown(t); n != 1 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if g, _ := agent.holds("stranger"); g != 7 {
		t.Errorf("the unknown work is at %d", g)
	}
	m.source().create("mc1", "stranger", "new")
	agent.awaitValue("stranger", "new")
	if n := m.unknown(t); n != 0 {
		t.Errorf("%d unknown works", n)
	}
}

// The server that has the stream delivers, wherever a source publishes; when
// it dies, another one goes on.
func TestI6AnyReplicaServesAGRPCAgent(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	one := site.start(withAgents(site), alone)
	two := site.start(withAgents(site), alone)
	one.consumer("mc1")
	one.consumer("mc2")
	src := one.source()
	first, second := one.grpcAgent("mc1"), two.grpcAgent("mc2")
	for n := range 50 {
		src.create("mc1", work.ID(fmt.Sprintf("a%d", n)), n)
		src.create("mc2", work.ID(fmt.Sprintf("b%d", n)), n)
	}
	for n := range 50 {
		first.awaitValue(work.ID(fmt.Sprintf("a%d", n)), n)
		second.awaitValue(work.ID(fmt.Sprintf("b%d", n)), n)
		one.awaitObserved(work.ID(fmt.Sprintf("b%d", n)), 1)
	}
	two.end()
	for n := range 50 {
		src.update("mc2", work.ID(fmt.Sprintf("b%d", n)), n+1000)
	}
	src.remove("mc2", "b0")
	second.moveTo(one)
	for n := 1; n < 50; n++ {
		second.awaitValue(work.ID(fmt.Sprintf("b%d", n)), n+1000)
		one.awaitObserved(work.ID(fmt.Sprintf("b%d", n)), 2)
	}
	one.awaitGone("b0")
	if first.count() != 50 || second.count() != 49 {
		t.Errorf("%d and %d works", first.count(), second.count())
	}
}

// Both ways at once: an agent by MQTT, one by gRPC.
func TestABrokerAndThePortOfAgentsTogether(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site))
	m.consumer("mc1")
	m.consumer("mc2")
	byMQTT, byGRPC := site.agent("mc1"), m.grpcAgent("mc2")
	src := m.source()
	src.create("mc1", "w1", 1)
	src.create("mc2", "w2", 2)
	byMQTT.awaitValue("w1", 1)
	byGRPC.awaitValue("w2", 2)
	m.awaitObserved("w1", 1)
	m.awaitObserved("w2", 1)
	src.remove("mc2", "w2")
	m.awaitGone("w2")
}

// The data of a resync is what the contract says.
func TestAnAgentsResyncListsVersions(t *testing.T) {
	raw, err := json.Marshal(work.SpecVersions{Versions: []work.SpecVersion{{ID: "a", Version: 1}}})
	if err != nil || string(raw) != `{"resourceVersions":[{"resourceID":"a","resourceVersion":1}]}` {
		t.Errorf("%s %v", raw, err)
	}
}
