package maestro

import (
	"fmt"
	"net/http"
	"testing"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/pgtest"
)

// TestI8UnknownWorksStay: a database that was lost orders nothing deleted.
// What a source orders again goes on above the generation that the agent has.
func TestI8UnknownWorksStay(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	src.create("mc1", "kept", 1)
	src.create("mc1", "orphan", 1)
	for n := range 5 {
		src.update("mc1", "kept", n+2)
	}
	m.awaitAllObserved(2)
	before, _ := agent.holds("kept")
	if before < 2 {
		t.Fatalf("generation %d", before)
	}
	m.end()
	agent.stop()

	site.dsn = pgtest.DSN(t) // all is lost
	m = site.start()
	c := m.consumer("mc1")
	if c.ComparedAt != nil {
		t.Fatalf("what the agent holds is known since %s, before it reported that", c.ComparedAt)
	}
	agent.start()
	eventually(t, "the unknown works are reported", func() error {
		var c2 api.Consumer
		m.want(http.StatusOK, "GET", c.Href, "").into(t, &c2)
		if c2.UnknownWorks != 2 || c2.ComparedAt == nil {
			return fmt.Errorf("%d unknown works, compared at %v", c2.UnknownWorks, c2.ComparedAt)
		}
		return nil
	})
	if n := agent.count(); n != 2 {
		t.Fatalf("the agent holds %d works", n)
	}
	src = m.source()
	src.create("mc1", "kept", "again")
	agent.awaitValue("kept", "again")
	m.awaitAllObserved(1)
	if after, _ := agent.holds("kept"); after <= before {
		t.Errorf("generation %d after %d", after, before)
	}
	if n := agent.count(); n != 2 {
		t.Errorf("the agent holds %d works: absence was taken for a deletion", n)
	}
	if deleted := agent.received(work.SpecDelete); len(deleted) != 0 {
		t.Errorf("deletions %+v", deleted)
	}
}

// TestI8AnOlderDatabaseGoesAboveItsAgents: the bundle was ordered again before
// the agent could say what it has.
func TestI8AnOlderDatabaseGoesAboveItsAgents(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	agent.mu.Lock()
	agent.works["w1"] = &agentWork{generation: 9, data: specData(configMap("w1", "old")),
		status: []byte(`{"conditions":[]}`), hash: "x"}
	agent.mu.Unlock()
	src := m.source()
	src.create("mc1", "w1", "new")
	agent.awaitValue("w1", "new")
	m.awaitAllObserved(1)
	if generation, _ := agent.holds("w1"); generation != 10 {
		t.Errorf("the agent has generation %d", generation)
	}
	if b := m.bundle("w1"); b.Version != 1 || b.Status.ObservedVersion != 1 {
		t.Errorf("version %d, observed %d: the source has ordered it once", b.Version, b.Status.ObservedVersion)
	}
}

// TestI6AWorkThatWasDeletedAsUnknownIsCreatedAgain: an operator deletes an unknown work, and its source creates it
// again. The new work has a generation above the deleted one, because the agent refuses orders up to that
// generation for
// minutes after it has deleted the work.
func TestI6AWorkThatWasDeletedAsUnknownIsCreatedAgain(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	agent.mu.Lock()
	agent.works["w1"] = &agentWork{generation: 9, data: specData(configMap("w1", "old")),
		status: []byte(`{"conditions":[]}`), hash: "x"}
	agent.mu.Unlock()
	agent.resync(t.Context())
	eventually(t, "the work is reported as unknown", func() error {
		if l := m.listUnknown(""); l.Total != 1 {
			return fmt.Errorf("%+v", l)
		}
		return nil
	})
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/unknown-works/mc1/w1?reason=not+wanted", "")
	eventually(t, "the agent has deleted it", func() error {
		if generation, _ := agent.holds("w1"); generation != 0 {
			return fmt.Errorf("it holds generation %d", generation)
		}
		return nil
	})
	src := m.source()
	src.create("mc1", "w1", "new")
	agent.awaitValue("w1", "new")
	m.awaitAllObserved(1)
	if generation, _ := agent.holds("w1"); generation != 10 {
		t.Errorf("the new work has generation %d, want 10: the deletion had 9", generation)
	}
	if b := m.bundle("w1"); b.Version != 1 || b.Status.ObservedVersion != 1 {
		t.Errorf("version %d, observed %d: the source has created it once", b.Version, b.Status.ObservedVersion)
	}
}

// TestI9ARestoredWorkIsDeletedAgain: when an agent restores a deleted work from an old message or a
// backup, Maestro sends the deletion again.
func TestI9ARestoredWorkIsDeletedAgain(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	c := m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)
	m.awaitAllObserved(1)
	agent.mu.Lock()
	backup := *agent.works["w1"]
	agent.mu.Unlock()
	src.remove("mc1", "w1")
	m.awaitAllObserved(0)
	agent.mu.Lock()
	agent.works["w1"] = &backup
	agent.mu.Unlock()
	agent.resync(t.Context())
	eventually(t, "it is deleted again", func() error {
		if n := agent.count(); n != 0 {
			return fmt.Errorf("%d works", n)
		}
		return nil
	})
	events := agent.received(work.SpecResyncResponse)
	if len(events) != 1 || events[0].Extensions[work.ExtDeletionTimestamp] == "" || len(events[0].Data) != 0 {
		t.Errorf("events %+v", events)
	}
	var c2 api.Consumer
	m.want(http.StatusOK, "GET", c.Href, "").into(t, &c2)
	if c2.UnknownWorks != 0 {
		t.Errorf("%d unknown works: its end is known", c2.UnknownWorks)
	}
}

// TestI6AWipedAgentGetsEverythingAgain also when all was acknowledged.
func TestI6AWipedAgentGetsEverythingAgain(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	for n := range 20 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	m.awaitAllObserved(20)
	agent.stop()
	agent.wipe()
	agent.start()
	eventually(t, "it holds everything", func() error {
		if n := agent.count(); n != 20 {
			return fmt.Errorf("%d works", n)
		}
		return nil
	})
}
