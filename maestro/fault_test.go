package maestro

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/quick"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/dispatch"
)

// quickRetries makes the repetitions of a test's server come early, so that
// what gets lost is mended while the test watches.
func quickRetries(o *Options) {
	o.RetryBase, o.RetryMax, o.DeleteMax = 100*time.Millisecond, time.Second, time.Second
}

// awaitAllObserved waits until every bundle of the list is observed at its version, as
// REST says, and nothing else is left.
func (i *instance) awaitAllObserved(want int) {
	i.t.Helper()
	eventually(i.t, fmt.Sprintf("%d bundles are settled", want), func() error {
		a, err := i.try("GET", "/api/maestro/v1/resource-bundles?size=65500", "")
		if err != nil {
			return err
		}
		var l api.ResourceBundleList
		if err := json.Unmarshal(a.body, &l); err != nil {
			return err
		}
		open := 0
		for _, b := range l.Items {
			if b.DeletedAt != nil || b.Status.ObservedVersion != b.Version {
				open++
			}
		}
		if open > 0 || len(l.Items) != want {
			return fmt.Errorf("%d of %d not settled, %d wanted", open, len(l.Items), want)
		}
		return nil
	})
}

// TestI6DroppedDuplicatedAndReorderedMessages loses, repeats and shuffles a
// good part of what goes either way, deletions included.
func TestI6DroppedDuplicatedAndReorderedMessages(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	var held []bus.Event
	agent.fault(func() {
		agent.lose = func(bus.Event) bool { return random.IntN(4) == 0 }
		agent.mangle = func(out []bus.Event) []bus.Event {
			switch random.IntN(5) {
			case 0:
				return nil // lost
			case 1:
				return append(out, out...) // twice
			case 2:
				held = append(held, out...) // later, behind others
				return nil
			case 3:
				out = append(out, held...)
				held = nil
			}
			return out
		}
	})
	src := m.source()
	const works = 40
	for n := range works {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), "first")
	}
	for n := range works {
		src.update("mc1", work.ID(fmt.Sprintf("w%d", n)), "last")
		if n%4 == 0 {
			src.remove("mc1", work.ID(fmt.Sprintf("w%d", n)))
		}
	}
	m.awaitAllObserved(works - works/4)
	for n := range works {
		if n%4 != 0 {
			agent.awaitValue(work.ID(fmt.Sprintf("w%d", n)), "last")
		}
	}
	// A stale copy may have brought a deleted work back; a resync finds it.
	agent.fault(func() { agent.lose, agent.mangle = nil, nil })
	eventually(t, "the agent holds what is wanted and no more", func() error {
		if n := agent.count(); n != works-works/4 {
			agent.resync(t.Context())
			return fmt.Errorf("it holds %d works", n)
		}
		return nil
	})
}

// TestI6TheBrokerRestartsInMidStream takes the broker away while works are
// created and reported.
func TestI6TheBrokerRestartsInMidStream(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	created := 0
	for round := range 3 {
		for range 50 {
			if round > 0 && created%50 == 25 {
				site.broker.Stop()
				site.broker.Start()
			}
			id := fmt.Sprintf("w%d", created)
			eventually(t, "the work is taken", func() error {
				err := src.publish(src.event(work.SpecCreate, "mc1", work.ID(id), 0, specData(configMap(id, 1))))
				if isCode(err, "AlreadyExists") {
					return nil
				}
				return err
			})
			created++
		}
	}
	m.awaitAllObserved(created)
	if n := agent.count(); n != created {
		t.Errorf("the agent holds %d of %d works", n, created)
	}
}

// TestI6OfflineFor1000Changes has the agent away while its works are created,
// changed and deleted; it converges when it is back.
func TestI6OfflineFor1000Changes(t *testing.T) {
	quick.Slow(t, "sends a thousand changes")
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	for n := range 200 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), "old")
	}
	m.awaitAllObserved(200)
	agent.stop()
	change := func(n int) {
		id := fmt.Sprintf("w%d", n%300)
		switch {
		case n < 200:
			src.update("mc1", work.ID(id), n)
		case n < 300:
			src.create("mc1", work.ID(id), n)
		case n < 900:
			src.update("mc1", work.ID(id), n)
		default:
			src.remove("mc1", work.ID(id))
		}
	}
	for n := range 1000 {
		change(n)
	}
	begin := time.Now()
	agent.start()
	m.awaitAllObserved(200)
	took := time.Since(begin)
	t.Logf("converged in %v", took)
	if n := agent.count(); n != 200 {
		t.Errorf("the agent holds %d works", n)
	}
	agent.awaitValue("w299", 899)
	if d := m.bundle("w299").Delivery; d.AcknowledgedGeneration != 3 {
		t.Errorf("delivery %+v", d)
	}
}

// TestAFloodedConsumerDelaysNoOther gives an absent consumer thousands of
// works, and another one a single one.
func TestAFloodedConsumerDelaysNoOther(t *testing.T) {
	quick.Slow(t, "creates 2,000 works of one consumer")
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("absent")
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	var group sync.WaitGroup
	for part := range 8 {
		group.Go(func() {
			for n := range 250 {
				src.create("absent", work.ID(fmt.Sprintf("a%d-%d", part, n)), n)
			}
		})
	}
	group.Wait()
	src.create("mc1", "w1", 1)
	agent.awaitValue("w1", 1)
	eventually(t, "the works are known", func() error {
		works, ahead := gauge(t, m, "maestro_pending_works"), gauge(t, m, "maestro_unacknowledged_works")
		if works != 2000 || ahead != 1000 {
			return fmt.Errorf("%v works, %v ahead", works, ahead)
		}
		return nil
	})
}

// TestI5I6TwoServersShareADatabase publishes to two servers, kills the one
// that delivers, and loses nothing.
func TestI5I6TwoServersShareADatabase(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	a := site.start(quickRetries)
	b := site.start(quickRetries)
	a.consumer("mc1")
	agent := site.agent("mc1")
	sources := []*source{a.source(), b.source()}
	for n := range 100 {
		sources[n%2].create("mc1", work.ID(fmt.Sprintf("w%d", n)), "one")
	}
	b.awaitAllObserved(100)
	divided(t, a, b)
	if slots := gauge(t, a, "maestro_delivery_slots") + gauge(t, b, "maestro_delivery_slots"); slots != dispatch.Slots {
		t.Errorf("two servers deliver for %v slots of %d", slots, dispatch.Slots)
	}
	a.end()
	for n := range 100 {
		sources[1].update("mc1", work.ID(fmt.Sprintf("w%d", n)), "two")
	}
	b.awaitAllObserved(100)
	for n := range 100 {
		agent.awaitValue(work.ID(fmt.Sprintf("w%d", n)), "two")
	}
}

// TestI7AnAgentSpeaksForItselfOnly: an event that claims another cluster is
// dropped, and so is one about another consumer's bundle.
func TestI7AnAgentSpeaksForItselfOnly(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	m.consumer("mc2")
	victim, liar := site.agent("mc1"), site.agent("mc2")
	src := m.source()
	src.create("mc1", "w1", 1)
	m.awaitAllObserved(1)
	src.remove("mc1", "w1")
	victim.stop()
	src2 := m.source()
	src2.create("mc1", "w2", 1)

	gone := liar.message(work.StatusUpdate, []byte(`{"conditions":[{"type":"Deleted","status":"True"}]}`))
	for k, v := range map[string]string{work.ExtResourceID: "w2", work.ExtResourceVersion: "1",
		work.ExtOriginalSource: "maestro", work.ExtSequenceID: "1"} {
		gone.Extensions[k] = v
	}
	liar.send(t.Context(), gone)
	claimed := gone
	claimed.Extensions = map[string]string{}
	for k, v := range gone.Extensions {
		claimed.Extensions[k] = v
	}
	claimed.Extensions[work.ExtClusterName] = "mc1"
	liar.send(t.Context(), claimed)
	eventually(t, "both are dropped", func() error {
		if n := counter(t, m, "maestro_events_dropped_total", "reason", bundle.DropConsumer); n < 2 {
			return fmt.Errorf("%v dropped", n)
		}
		return nil
	})
	if b := m.bundle("w2"); b.Status.ObservedVersion != 0 {
		t.Errorf("status %+v", b.Status)
	}
	if lists := liar.received(work.SpecCreate); len(lists) != 0 {
		t.Errorf("another consumer's works came: %+v", lists)
	}
}

func TestWhatIsDownIs503(t *testing.T) {
	pg := pgtest.StartServer(t)
	site := newSiteOn(t, pgtest.NewDatabase(t, pg.Cluster))
	m := site.start(func(o *Options) { o.Adapt = nil }) // the limits of production
	c := m.consumer("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)

	// A request is refused within 2 s, to which a busy machine adds. Now and then it adds more than that: the
	// fastest one of several refusals counts.
	inTime := func(refused func()) {
		t.Helper()
		fastest := time.Hour
		for range 10 {
			begin := time.Now()
			refused()
			if fastest = min(fastest, time.Since(begin)); fastest <= 4*time.Second || t.Failed() {
				return
			}
		}
		t.Errorf("the fastest of ten answers took %v", fastest)
	}
	within := func(call func() (answer, error)) {
		t.Helper()
		inTime(func() {
			t.Helper()
			a, err := call()
			if err != nil || a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
				t.Errorf("%v: %d %s", err, a.status, a.body)
			}
		})
	}
	// The broker: what changes is refused, what reads is not.
	site.broker.Stop()
	eventually(t, "the broker's absence counts", func() error { return not(m.server.checkAccepting()) })
	within(func() (answer, error) { return m.try("POST", "/api/maestro/v1/consumers", `{"name":"mc2"}`) })
	within(func() (answer, error) { return m.try("DELETE", "/api/maestro/v1/resource-bundles/w1", "") })
	if err := src.publish(src.event(work.SpecCreate, "mc1", "w2", 0, specData(configMap("x", 1)))); !isCode(
		err, "Unavailable") {
		t.Errorf("publish: %v", err)
	}
	m.want(http.StatusOK, "GET", c.Href, "")
	if missing := m.ops.Missing(t.Context()); len(missing) != 1 || missing[0].Name != "broker" {
		t.Errorf("missing %v", missing)
	}
	site.broker.Start()
	eventually(t, "writes are taken again", m.server.checkAccepting)

	// PostgreSQL, killed.
	pg.Kill()
	within(func() (answer, error) { return m.try("GET", c.Href, "") })
	within(func() (answer, error) { return m.try("POST", "/api/maestro/v1/consumers", `{"name":"mc2"}`) })
	inTime(func() {
		if err := src.publish(src.event(work.SpecCreate, "mc1", "w2", 0, specData(configMap("x", 1)))); !isCode(
			err, "Unavailable") {
			t.Errorf("publish: %v", err)
		}
	})
	pg.Start()
	m.awaitReady()
	agent := site.agent("mc1")
	agent.awaitValue("w1", 1)
	src.create("mc1", "w3", 3)
	agent.awaitValue("w3", 3)
	m.awaitAllObserved(2)
}

func not(err error) error {
	if err == nil {
		return errors.New("not yet")
	}
	return nil
}
