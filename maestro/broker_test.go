package maestro

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/test/testsite"
)

// The whole road over a broker that is not ours, by three connections, while
// the broker is killed twice: all works arrive and all statuses come back, and
// deletions, too (I6).
func TestI6TheRoadOverMosquitto(t *testing.T) {
	t.Parallel()
	site := newMosquittoSite(t, 0)
	m := site.start(func(o *Options) { o.Connections = 3 })
	const consumers, works = 5, 20
	agents := make([]*scriptedAgent, consumers)
	for c := range agents {
		m.consumer(fmt.Sprintf("mc%d", c))
		agents[c] = site.agent(work.Consumer(fmt.Sprintf("mc%d", c)))
	}
	src := m.source()
	each := func(f func(consumer int, id string)) {
		for w := range works {
			for c := range agents {
				f(c, fmt.Sprintf("w%d-%d", c, w))
			}
		}
	}
	restart := func() {
		site.broker.Stop()
		site.broker.Start()
		m.awaitReady()
	}
	observed := func(version int64) {
		t.Helper()
		each(func(_ int, id string) {
			eventually(t, id+" is acknowledged", func() error {
				if b := m.bundle(work.ID(id)); b.Version != version || b.Status.ObservedVersion != version {
					return fmt.Errorf("version %d, observed %d", b.Version, b.Status.ObservedVersion)
				}
				return nil
			})
		})
	}
	each(func(c int, id string) { src.create(work.Consumer(fmt.Sprintf("mc%d", c)), work.ID(id), "one") })
	restart()
	each(func(c int, id string) { agents[c].awaitValue(work.ID(id), "one") })
	observed(1)
	each(func(c int, id string) { src.update(work.Consumer(fmt.Sprintf("mc%d", c)), work.ID(id), "two") })
	restart()
	observed(2)
	each(func(c int, id string) { src.remove(work.Consumer(fmt.Sprintf("mc%d", c)), work.ID(id)) })
	each(func(_ int, id string) {
		eventually(t, id+" is gone", func() error {
			if a := m.call("GET", "/api/maestro/v1/resource-bundles/"+id, ""); a.status != http.StatusNotFound {
				return fmt.Errorf("status %d", a.status)
			}
			return nil
		})
	})
}

// A bundle that the broker would not take is refused, not stored and lost: by
// the limit that the broker announces, or the one that it is said to have.
func TestWhatTheBrokerDoesNotTakeIsRefused(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 12_000)
	for name, limited := range map[string]func(t *testing.T) *instance{
		"announced": func(t *testing.T) *instance { return newMosquittoSite(t, 10_000).start() },
		"configured": func(t *testing.T) *instance {
			return newSite(t).start(
				func(o *Options) { o.MaxMessage = 10_000 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := limited(t)
			m.consumer("mc1")
			src := m.source()
			wantRefusal := func(err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "maestro-8") || !strings.Contains(err.Error(),
					"the message broker takes 10000") {
					t.Errorf("%v does not contain the broker's limit", err)
				}
			}
			wantRefusal(src.publish(src.event(work.SpecCreate, "mc1", "w1", 0, specData(configMap("w1", large)))))
			m.want(http.StatusNotFound, "GET", "/api/maestro/v1/resource-bundles/w1", "")
			src.create("mc1", "w1", "small")
			wantRefusal(src.publish(src.event(work.SpecUpdate, "mc1", "w1", 0, specData(configMap("w1", large)))))
			if b := m.bundle("w1"); b.Version != 1 {
				t.Errorf("version %d", b.Version)
			}
		})
	}
}

// Brokers without shared subscriptions: every replica receives the events of every agent. All
// statuses are taken, each once.
func TestReplicasThatAllHearEverything(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	plain := func(o *Options) {
		o.Topics = bus.TopicsOf("maestro")
		o.Topics.AgentEvents.Group = ""
		// what is counted below are comparisons, however slow the machine is
		o.RetryBase, o.RetryMax = time.Hour, time.Hour
	}
	first := site.start(plain)
	m := site.start(plain)
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	const works = 30
	for w := range works {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", w)), "one")
	}
	for w := range works {
		id := fmt.Sprintf("w%d", w)
		agent.awaitValue(work.ID(id), "one")
		agent.report(work.ID(id), "Available")
		eventually(t, "the last status is stored", func() error {
			if b := m.bundle(work.ID(id)); len(b.Status.Conditions) != 1 || !strings.Contains(string(b.Status.Conditions[0]),
				"Available") {
				return fmt.Errorf("%s", b.Status.Conditions)
			}
			return nil
		})
	}
	// Created, its first status, its second, or both at once: nothing was stored
	// twice.
	if tag := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/w0", "").header.Get(
		"Etag"); tag != `"3"` && tag != `"2"` {
		t.Errorf("three changes made version %s", tag)
	}

	// Each comparison is answered once, and what an agent lacks comes once.
	compareAnswered := func() []bus.Event {
		t.Helper()
		before := len(agent.received(work.ServerDigest))
		agent.sayDigest(t.Context())
		eventually(t, "an answer", func() error {
			if len(agent.received(work.ServerDigest)) == before {
				return errors.New("none yet")
			}
			return nil
		})
		agent.quiet(t, time.Second)
		return agent.received(work.ServerDigest)[before:]
	}
	agent.fault(func() { agent.digests = true })
	compareAnswered()
	if answers := compareAnswered(); len(answers) != 1 {
		t.Errorf("two servers gave %d answers", len(answers))
	}
	agent.wipe()
	before := len(agent.received(work.SpecCreate))
	compareAnswered()
	for w := range works {
		agent.awaitValue(work.ID(fmt.Sprintf("w%d", w)), "one")
	}
	agent.quiet(t, time.Second)
	if n := len(agent.received(work.SpecCreate)) - before; n != works {
		t.Errorf("%d works came %d times", works, n)
	}

	// When the one that answers is gone, the other does.
	first.end()
	compare := func() []bus.Event {
		t.Helper()
		before := len(agent.received(work.ServerDigest))
		agent.sayDigest(t.Context())
		agent.quiet(t, time.Second)
		return agent.received(work.ServerDigest)[before:]
	}
	eventually(t, "an answer of the other", func() error {
		if answers := compare(); len(answers) != 1 {
			return fmt.Errorf("%d answers", len(answers))
		}
		return nil
	})
}

// An agent's list that was on its way while the agent took and acknowledged a
// work takes nothing back: nobody would acknowledge it a second time (I6). One
// that came later does: the agent was wiped.
func TestI6AListThatIsLateTakesNothingBack(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	before := time.Now()
	src.create("mc1", "w1", "one")
	agent.awaitValue("w1", "one")
	acknowledged := func(want int64) error {
		d := m.bundle("w1").Delivery
		if d == nil || d.AcknowledgedGeneration != want {
			return fmt.Errorf("delivery %+v", d)
		}
		return nil
	}
	eventually(t, "the work is acknowledged", func() error { return acknowledged(1) })
	agent.fault(func() { agent.deaf = true })
	list := bus.Event{Type: work.SpecResync, Data: []byte(`{"resourceVersions":[]}`)}
	answer := func(arrived time.Time) error { return m.server.comparer.Answer(t.Context(), "mc1", list, arrived) }
	if err := errors.Join(answer(before), acknowledged(1)); err != nil {
		t.Errorf("after a late list: %v", err)
	}
	if err := errors.Join(answer(time.Now()), acknowledged(0)); err != nil {
		t.Errorf("after a later one: %v", err)
	}
}

// The words of topics are free, and an agent may ask all sources at once. The
// broker is Mosquitto: ours has Maestro's own topics only.
func TestOtherTopicsAndABroadcast(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	broker := testsite.StartOpenMosquitto(t)
	config, err := bus.ParseConfig([]byte("brokerHost: " + broker + `
topics:
  sourceEvents: sources/maestro/clusters/+/sourceevents
  agentEvents: $share/servers/sources/maestro/clusters/+/agentevents
  agentBroadcast: $share/servers/clusters/+/agentbroadcast
`))
	if err != nil {
		t.Fatal(err)
	}
	m := site.start(func(o *Options) { o.Broker, o.BrokerTLS, o.Topics = broker, nil, config.Topics })
	m.consumer("mc1")
	specs := make(chan bus.Event, 100)
	agent := bus.NewClient(bus.ClientOptions{Addr: broker, ClientID: "mc1", Subscriptions: []string{
		"sources/maestro/clusters/mc1/sourceevents"},
		Handler: func(_ context.Context, e bus.Message) {
			e.Ack()
			if e.Event.Extensions[work.ExtResourceID] != "" {
				specs <- e.Event
			}
		}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); agent.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, "the agent is connected", func() error { return agent.Check(ctx) })

	m.source().create("mc1", "w1", "one")
	await := func() bus.Event {
		select {
		case e := <-specs:
			return e
		case <-time.After(patience):
			t.Fatal("no work came")
			panic("unreachable")
		}
	}
	say := func(topic, kind, data string, ext map[string]string) {
		t.Helper()
		ext[work.ExtClusterName] = "mc1"
		if err := agent.Publish(ctx, topic, bus.Event{ID: uuid.NewString(), Source: "mc1-agent", Type: kind,
			DataContentType: "application/json", Data: []byte(data), Extensions: ext}); err != nil {
			t.Fatal(err)
		}
	}
	await()
	say("sources/maestro/clusters/mc1/agentevents", work.StatusUpdate,
		`{"conditions":[{"type":"Applied","status":"True","reason":"R","message":"M","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`,
		map[string]string{work.ExtResourceID: "w1", work.ExtResourceVersion: "1", work.ExtOriginalSource: "maestro",
			work.ExtSequenceID: "1"})
	eventually(t, "the status is stored", func() error {
		if b := m.bundle("w1"); b.Status.ObservedVersion != 1 {
			return fmt.Errorf("observed %d", b.Status.ObservedVersion)
		}
		return nil
	})
	for len(specs) > 0 { // repeated while it was not acknowledged
		<-specs
	}
	say("clusters/mc1/agentbroadcast", work.SpecResync, `{"resourceVersions":[]}`, map[string]string{
		work.ExtOriginalSource: ""})
	if e := await(); e.Extensions[work.ExtResourceID] != "w1" || e.Extensions[work.ExtResourceVersion] != "1" {
		t.Errorf("got %v", e.Extensions)
	}
}
