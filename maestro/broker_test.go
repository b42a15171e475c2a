package maestro

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// The whole road over a broker that is not ours, by three connections, while
// the broker is killed twice: all works arrive and all statuses come back, and
// deletions, too (I6).
func TestI6TheRoadOverMosquitto(t *testing.T) {
	site := newMosquittoSite(t, 0)
	m := site.start(func(o *Options) { o.Connections = 3 })
	const consumers, works = 5, 20
	agents := make([]*scriptedAgent, consumers)
	for c := range agents {
		m.consumer(fmt.Sprintf("mc%d", c))
		agents[c] = site.agent(fmt.Sprintf("mc%d", c))
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
		site.broker.stop()
		site.broker.start()
		m.awaitReady()
	}
	observed := func(version int64) {
		t.Helper()
		each(func(_ int, id string) {
			eventually(t, id+" is acknowledged", func() error {
				if b := m.bundle(id); b.Version != version || b.Status.ObservedVersion != version {
					return fmt.Errorf("version %d, observed %d", b.Version, b.Status.ObservedVersion)
				}
				return nil
			})
		})
	}
	each(func(c int, id string) { src.create(fmt.Sprintf("mc%d", c), id, "one") })
	restart()
	each(func(c int, id string) { agents[c].awaitValue(id, "one") })
	observed(1)
	each(func(c int, id string) { src.update(fmt.Sprintf("mc%d", c), id, "two") })
	restart()
	observed(2)
	each(func(c int, id string) { src.remove(fmt.Sprintf("mc%d", c), id) })
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
	large := strings.Repeat("x", 12_000)
	for name, limited := range map[string]func(t *testing.T) *instance{
		"announced":  func(t *testing.T) *instance { return newMosquittoSite(t, 10_000).start() },
		"configured": func(t *testing.T) *instance { return newSite(t).start(func(o *Options) { o.MaxMessage = 10_000 }) },
	} {
		t.Run(name, func(t *testing.T) {
			m := limited(t)
			m.consumer("mc1")
			src := m.source()
			says := func(err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "maestro-8") || !strings.Contains(err.Error(), "the message broker takes 10000") {
					t.Errorf("%v does not say what the broker takes", err)
				}
			}
			says(src.publish(src.event(work.SpecCreate, "mc1", "w1", 0, specData(configMap("w1", large)))))
			m.want(http.StatusNotFound, "GET", "/api/maestro/v1/resource-bundles/w1", "")
			src.create("mc1", "w1", "small")
			says(src.publish(src.event(work.SpecUpdate, "mc1", "w1", 0, specData(configMap("w1", large)))))
			if b := m.bundle("w1"); b.Version != 1 {
				t.Errorf("version %d", b.Version)
			}
		})
	}
}

// Brokers without shared subscriptions: every replica hears every agent. All
// statuses are taken, each once.
func TestReplicasThatAllHearEverything(t *testing.T) {
	site := newSite(t)
	plain := func(o *Options) {
		o.Topics = bus.TopicsOf("maestro")
		o.Topics.AgentEvents.Group = ""
	}
	m := site.start(plain)
	site.start(plain)
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	const works = 30
	for w := range works {
		src.create("mc1", fmt.Sprintf("w%d", w), "one")
	}
	for w := range works {
		id := fmt.Sprintf("w%d", w)
		agent.awaitValue(id, "one")
		agent.report(id, "Available")
		eventually(t, "the last status is stored", func() error {
			if b := m.bundle(id); len(b.Status.Conditions) != 1 || !strings.Contains(string(b.Status.Conditions[0]), "Available") {
				return fmt.Errorf("%s", b.Status.Conditions)
			}
			return nil
		})
	}
	// Created, its first status, its second, or both at once: nothing was stored
	// twice.
	if tag := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/w0", "").header.Get("Etag"); tag != `"3"` && tag != `"2"` {
		t.Errorf("three changes made version %s", tag)
	}
}

// An agent's list that was on its way while the agent took and acknowledged a
// work takes nothing back: nobody would acknowledge it a second time (I6). One
// that came later does: the agent was wiped.
func TestI6AListThatIsLateTakesNothingBack(t *testing.T) {
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
	late := resyncRequest{consumer: "mc1", at: before, kind: work.SpecResync}
	if err := errors.Join(m.server.answer(t.Context(), late), acknowledged(1)); err != nil {
		t.Errorf("after a late list: %v", err)
	}
	late.at = time.Now()
	if err := errors.Join(m.server.answer(t.Context(), late), acknowledged(0)); err != nil {
		t.Errorf("after a later one: %v", err)
	}
}
