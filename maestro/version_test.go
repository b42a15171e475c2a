package maestro

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/bundle"
)

// metadataOf reads the metadata extension of a status event.
func metadataOf(t *testing.T, m bus.Event) (meta struct{ Name, UID, CreationTimestamp, DeletionTimestamp string }) {
	t.Helper()
	if err := json.Unmarshal([]byte(m.Extensions[work.ExtMetadata]), &meta); err != nil {
		t.Fatalf("metadata %q: %v", m.Extensions[work.ExtMetadata], err)
	}
	return meta
}

// TestStatusEventsSayWhenTheWorkWasCreatedAndDeleted: a stock watcher reads
// both times from the metadata of status events, as from the original's.
func TestStatusEventsSayWhenTheWorkWasCreatedAndDeleted(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	stream := m.subscribe(t, testSource)
	src.create("mc1", "w1", 1)
	b := m.bundle("w1")
	want := b.CreatedAt.UTC().Format("2006-01-02T15:04:05Z")
	if meta := metadataOf(t, stream.next()); meta.CreationTimestamp != want || meta.DeletionTimestamp != "" ||
		meta.Name != "name-of-w1" || meta.UID != "w1" {
		t.Errorf("metadata %+v of a work that was created at %s", meta, want)
	}

	agent.fault(func() { agent.deaf = true })
	src.remove("mc1", "w1")
	b = m.bundle("w1")
	agent.report("w1", "Late")
	deleted := b.DeletedAt.UTC().Format("2006-01-02T15:04:05Z")
	for _, what := range []string{"under deletion", "deleted"} {
		ev := stream.next()
		for what == "deleted" && !strings.Contains(string(ev.Data), work.ReasonDeleted) {
			ev = stream.next()
		}
		if meta := metadataOf(t, ev); meta.CreationTimestamp != want || meta.DeletionTimestamp != deleted {
			t.Errorf("%s: metadata %+v, want a deletion at %s", what, meta, deleted)
		}
		agent.fault(func() { agent.deaf = false })
	}

	// What an operator ended has a time, too.
	agent.fault(func() { agent.deaf = true })
	src.create("mc1", "w2", 1)
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/w2?force=true&reason=test", "")
	if meta := metadataOf(t, stream.next()); meta.DeletionTimestamp == "" {
		t.Errorf("metadata %+v of a work that was ended", meta)
	}
}

// observedGenerations are those of conditions that have one.
func observedGenerations(t *testing.T, conditions []json.RawMessage) string {
	t.Helper()
	var found []string
	for _, raw := range conditions {
		var c struct{ ObservedGeneration int64 }
		if err := json.Unmarshal(raw, &c); err != nil {
			t.Fatal(err)
		}
		if c.ObservedGeneration != 0 {
			found = append(found, fmt.Sprint(c.ObservedGeneration))
		}
	}
	return strings.Join(found, " ")
}

// TestConditionsShowVersions: those of the work and of its resources, and
// nothing else of them changes.
func TestConditionsShowVersions(t *testing.T) {
	read := func() (sd bundle.StatusData) {
		err := json.Unmarshal(
			[]byte(
				`{"conditions":[{"type":"Applied","observedGeneration":7,"x":1.50},{"type":"Available","observedGeneration":5},{"type":"Old"}],
			"resourceStatus":[{"resourceMeta":{"ordinal":0},"conditions":[{"type":"Applied","observedGeneration":7}]},{"resourceMeta":{"ordinal":1}}]}`), &sd)
		if err != nil {
			t.Fatal(err)
		}
		return sd
	}
	same, shown := read(), read()
	if err := errors.Join(same.ShowVersions(0), shown.ShowVersions(5)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(read(), same); diff != "" {
		t.Error(diff)
	}
	got, err := bundle.Marshal(shown)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"conditions":[{"observedGeneration":2,"type":"Applied","x":1.50},{"observedGeneration":0,"type":"Available"},{"type":"Old"}],` +
		`"resourceStatus":[{"conditions":[{"observedGeneration":2,"type":"Applied"}],"resourceMeta":{"ordinal":0}},{"resourceMeta":{"ordinal":1}}]}`
	if string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestABundleThatIsCreatedAgainBeginsWithVersion1: sources see versions from 1
// over REST, gRPC and in status events, as from the original, whatever was
// there before; the generations that agents see go on.
func TestABundleThatIsCreatedAgainBeginsWithVersion1(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	life := func(before int64) (generation int64) {
		t.Helper()
		stream := m.subscribe(t, testSource)
		src.create("mc1", "w1", fmt.Sprint("first after ", before))
		if b := m.bundle("w1"); b.Version != 1 {
			t.Errorf("version %d of a new bundle", b.Version)
		}
		m.awaitAllObserved(1)
		if v := stream.next().Extensions[work.ExtResourceVersion]; v != "1" {
			t.Errorf("the first status event is of version %s", v)
		}
		generation, _ = agent.holds("w1")
		if generation <= before {
			t.Errorf("the agent has generation %d after %d", generation, before)
		}
		// The client's rules: version 1 may be updated, 2 is not the latest.
		if err := src.publish(src.event(work.SpecUpdate, "mc1", "w1", 2, specData(configMap("w1", "x")))); err == nil ||
			!strings.Contains(err.Error(), "the resource version is not the latest, the latest version: 1") {
			t.Errorf("an update of version 2: %v", err)
		}
		second := fmt.Sprint("second after ", before)
		if err := src.publish(src.event(work.SpecUpdate, "mc1", "w1", 1,
			specData(configMap("w1", second)))); err != nil {
			t.Fatalf("an update of version 1: %v", err)
		}
		agent.awaitValue("w1", second)
		m.awaitAllObserved(1)
		b := m.bundle("w1")
		if got := observedGenerations(t, b.Status.Conditions); got != "2" {
			t.Errorf("conditions of generation %s at version 2", got)
		}
		if b.Version != 2 || b.Status.ObservedVersion != 2 || b.Delivery.AcknowledgedGeneration != 2 {
			t.Errorf("version %d, observed %d, delivered %+v", b.Version, b.Status.ObservedVersion, b.Delivery)
		}
		for search, want := range map[string]int{"version=2": 1, "version>2": 0} {
			var l api.ResourceBundleList
			m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles?search="+search, "").into(t, &l)
			if len(l.Items) != want {
				t.Errorf("%d bundles with %s", len(l.Items), search)
			}
		}
		generation, _ = agent.holds("w1")
		src.remove("mc1", "w1")
		for deleted := false; !deleted; {
			ev := stream.next()
			if v := ev.Extensions[work.ExtResourceVersion]; v != "2" {
				t.Errorf("a status event of version %s", v)
			}
			var sd bundle.StatusData
			if err := json.Unmarshal(ev.Data, &sd); err != nil {
				t.Fatal(err)
			}
			if got := observedGenerations(t, sd.Conditions); got != "2" && got != "" {
				t.Errorf("a status event of version 2 has conditions of generation %s", got)
			}
			deleted = strings.Contains(string(ev.Data), work.ReasonDeleted)
		}
		// A source that still lists it learns of its end, at the version that it knew.
		ask(t, stream.client, testSource, work.StatusHash{ID: "w1", Hash: "x"})
		if ev := stream.next(); ev.Extensions[work.ExtResourceVersion] != "2" || !strings.Contains(string(ev.Data),
			work.ReasonDeleted) {
			t.Errorf("a resync says %v", ev.Extensions)
		}
		return generation
	}
	last := int64(0)
	for range 3 {
		last = life(last)
	}
	if last != 6 {
		t.Errorf("the agent ended with generation %d of 6", last)
	}
}
