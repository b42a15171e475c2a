// Package transporttest has the tests that every transport of the adapter must pass,
// and a transport in memory.
//
// It is for tests and benchmarks.
package transporttest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"atoll.dev/adapter"
	"atoll.dev/api/work"
)

// Subject is a transport under test, with the functions by which the suite checks it.
type Subject struct {
	Transport adapter.Transport
	Target    work.Consumer // the TargetCluster of Application, Search and Deletion

	// Object returns an object that contains value. Its name is unique in the transport.
	Object func(name, value string) adapter.Object
	// Value returns the value that an object contains.
	Value func(adapter.Object) string

	// Modify sets the value of the object, as another client does without the transport.
	Modify func(t testing.TB, name, value string)
	// Remove deletes the object, as another client does without the transport.
	Remove func(t testing.TB, name string)
}

// patience limits every wait, for hangs only: each event takes milliseconds.
const patience = 3 * time.Minute

// Run runs the suite. Each call of subject may return the same transport, since the suite
// makes names unique.
func Run(t *testing.T, subject func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"a missing object is not found", (*suite).absent},
		{"an applied object is found by name and labels", (*suite).found},
		{"applying twice changes nothing", (*suite).twice},
		{"a higher generation changes, a lower one does not", (*suite).generations},
		{"the same generation repairs changes by others", (*suite).drift},
		{"recreation", (*suite).recreation},
		{"a deletion ends, and may be repeated", (*suite).deletion},
		{"objects of a deleted resource are not created again", (*suite).onlyExisting},
		{"a watch reports changes by others", (*suite).watch},
		{"many applications at the same time", (*suite).many},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(&suite{T: t, Subject: subject(t), prefix: "s" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-"})
		})
	}
}

type suite struct {
	*testing.T
	Subject
	prefix string
}

func (s *suite) event(name string, generation int64) adapter.Event {
	return adapter.Event{ID: "id-" + name, Kind: "Cluster", Href: "/clusters/" + name, Generation: generation}
}

func (s *suite) application(name, value string, generation int64) adapter.Application {
	o := s.Object(s.prefix+name, value)
	annotations(o)[annotationGeneration] = strconv.FormatInt(generation, 10)
	o["metadata"].(map[string]any)["labels"] = map[string]any{"suite": s.prefix + "all", "name": s.prefix + name}
	return adapter.Application{Resource: "thing", Object: o, Generation: generation, TargetCluster: s.Target,
		Event: s.event(name, generation)}
}

func (s *suite) apply(a adapter.Application) adapter.Applied {
	s.Helper()
	done, err := s.Transport.Apply(s.Context(), a)
	if err != nil {
		s.Fatal(err)
	}
	return done
}

func (s *suite) expect(done adapter.Applied, op adapter.Operation, value string) {
	s.Helper()
	if done.Operation != op || s.Value(done.Object) != value {
		s.Fatalf("%s (%s) with value %q; want %s and %q", done.Operation, done.Reason, s.Value(done.Object), op,
			value)
	}
}

func (s *suite) search(name string) adapter.Search {
	o := s.Object(s.prefix+name, "")
	return adapter.Search{
		APIVersion: text(o["apiVersion"]), Kind: text(o["kind"]), Namespace: meta(o, "namespace"), Name: s.prefix +
			name, TargetCluster: s.Target,
	}
}

func (s *suite) byLabels(labels map[string]string) adapter.Search {
	search := s.search("")
	search.Name, search.Namespace, search.Labels = "", "*", labels
	return search
}

func (s *suite) discover(search adapter.Search) []adapter.Object {
	s.Helper()
	found, err := s.Transport.Discover(s.Context(), search)
	if err != nil {
		s.Fatal(err)
	}
	return found
}

// expectValue finds an object by name, checks its value, and returns the object.
func (s *suite) expectValue(name, value string) adapter.Object {
	s.Helper()
	found := s.discover(s.search(name))
	if len(found) != 1 || s.Value(found[0]) != value {
		s.Fatalf("found %v, want one object with value %q", found, value)
	}
	return found[0]
}

func (s *suite) eventually(what string, check func() bool) {
	s.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !check() {
		select {
		case <-limit:
			s.Fatalf("timed out: %s", what)
		case <-tick.C:
		}
	}
}

func (s *suite) absent() {
	if found := s.discover(s.search("none")); len(found) != 0 {
		s.Fatalf("found %v", found)
	}
	if found := s.discover(s.byLabels(map[string]string{"name": s.prefix + "none"})); len(found) != 0 {
		s.Fatalf("found %v", found)
	}
}

func (s *suite) found() {
	s.expect(s.apply(s.application("b", "1", 1)), adapter.Created, "1")
	s.expect(s.apply(s.application("a", "2", 1)), adapter.Created, "2")
	object := s.expectValue("a", "2")
	if event := text(annotations(object)[annotationEvent]); event == "" {
		s.Errorf("without the annotation %s: %v", annotationEvent, object)
	}
	if g := text(annotations(object)[annotationGeneration]); g != "1" {
		s.Errorf("generation %q", g)
	}
	both := s.discover(s.byLabels(map[string]string{"suite": s.prefix + "all"}))
	if len(both) != 2 || meta(both[0], "name") != s.prefix+"a" || meta(both[1], "name") != s.prefix+"b" {
		s.Errorf("found %v, want a and b", both)
	}
	anywhere := s.search("b")
	anywhere.Namespace = "*"
	if found := s.discover(anywhere); len(found) != 1 || s.Value(found[0]) != "1" {
		s.Errorf("in any namespace: found %v", found)
	}
	if found := s.discover(s.byLabels(map[string]string{"suite": s.prefix + "all", "name": "another"})); len(
		found) != 0 {
		s.Errorf("found %v", found)
	}
}

func (s *suite) twice() {
	s.expect(s.apply(s.application("a", "1", 3)), adapter.Created, "1")
	before := s.expectValue("a", "1")
	s.expect(s.apply(s.application("a", "1", 3)), adapter.Skipped, "1")
	if after := s.expectValue("a", "1"); meta(after, "uid") != meta(before, "uid") {
		s.Errorf("another object: %v, was %v", after, before)
	}
}

func (s *suite) generations() {
	s.expect(s.apply(s.application("a", "1", 2)), adapter.Created, "1")
	s.expect(s.apply(s.application("a", "2", 3)), adapter.Updated, "2")
	s.expect(s.apply(s.application("a", "1", 2)), adapter.Skipped, "2")
	s.expectValue("a", "2")
	s.expect(s.apply(s.application("a", "2", 10)), adapter.Updated, "2")
	if g := text(annotations(s.expectValue("a", "2"))[annotationGeneration]); g != "10" {
		s.Errorf("generation %q, want 10", g)
	}
}

func (s *suite) drift() {
	s.apply(s.application("a", "1", 1))
	s.Modify(s.T, s.prefix+"a", "other")
	s.eventually("the modification is visible", func() bool {
		found := s.discover(s.search("a"))
		return len(found) == 1 && s.Value(found[0]) == "other"
	})
	s.expect(s.apply(s.application("a", "1", 1)), adapter.Updated, "1")
	s.expectValue("a", "1")
}

func (s *suite) recreation() {
	s.apply(s.application("a", "1", 1))
	a := s.application("a", "2", 2)
	a.Recreate = true
	s.expect(s.apply(a), adapter.Recreated, "2")
	s.expectValue("a", "2")
	s.expect(s.apply(a), adapter.Skipped, "2")
}

func (s *suite) deletion() {
	s.apply(s.application("a", "1", 1))
	object := s.expectValue("a", "1")
	for range 2 {
		if err := s.Transport.Delete(s.Context(), adapter.Deletion{Object: object,
			TargetCluster: s.Target}); err != nil {
			s.Fatal(err)
		}
	}
	s.eventually("it is gone", func() bool { return len(s.discover(s.search("a"))) == 0 })
	s.expect(s.apply(s.application("a", "3", 1)), adapter.Created, "3") // a lower generation, too, once it is gone
}

func (s *suite) onlyExisting() {
	a := s.application("a", "1", 1)
	a.OnlyExisting = true
	if done := s.apply(a); done.Operation != adapter.Skipped || done.Object != nil {
		s.Errorf("%s (%s) of what was not there", done.Operation, done.Reason)
	}
	if found := s.discover(s.search("a")); len(found) > 0 {
		s.Errorf("it was made: %v", found)
	}
	s.apply(s.application("a", "1", 1))
	a = s.application("a", "2", 2)
	a.OnlyExisting, a.Recreate = true, true
	before := meta(s.expectValue("a", "1"), "uid")
	s.expect(s.apply(a), adapter.Updated, "2")
	if uid := meta(s.expectValue("a", "2"), "uid"); uid != before {
		s.Errorf("it was made anew: %s, was %s", uid, before)
	}
}

func (s *suite) watch() {
	w, ok := s.Transport.(adapter.Watcher)
	if !ok {
		s.Skip("this transport does not watch")
	}
	s.apply(s.application("early", "1", 1))
	ctx, cancel := context.WithCancel(s.Context())
	events := make(chan adapter.Event, 1000)
	var done sync.WaitGroup
	done.Go(func() {
		if err := w.Watch(ctx, func(e adapter.Event) bool { events <- e; return true }); ctx.Err() == nil {
			s.Errorf("the watch ended: %v", err)
		}
	})
	defer done.Wait()
	defer cancel()
	await := func(name string, provoke func(i int)) {
		s.Helper()
		limit := time.After(patience)
		again := time.NewTicker(200 * time.Millisecond)
		defer again.Stop()
		for i := 0; ; i++ {
			// A watch takes a while to start, so the loop repeats the change until the
			// watch reports it.
			provoke(i)
			for waiting := true; waiting; {
				select {
				case e := <-events:
					if e == s.event(name, 1) {
						return
					}
				case <-again.C:
					waiting = false
				case <-limit:
					s.Fatalf("no event for %s", name)
				}
			}
		}
	}
	await("early", func(i int) { s.Modify(s.T, s.prefix+"early", fmt.Sprint("other ", i)) })
	s.apply(s.application("late", "1", 1))
	await("late", func(i int) { s.Modify(s.T, s.prefix+"late", fmt.Sprint("other ", i)) })
	await("late", func(i int) {
		if i == 0 {
			s.Remove(s.T, s.prefix+"late")
		}
	})
}

// applyWithRetry repeats an Apply that fails, as a worker repeats a failed run: a server under load may
// answer that its database is unavailable. It fails the test after two minutes.
func (s *suite) applyWithRetry(a adapter.Application) {
	limit := time.After(2 * time.Minute)
	retry := time.NewTicker(200 * time.Millisecond)
	defer retry.Stop()
	for {
		_, err := s.Transport.Apply(s.Context(), a)
		if err == nil {
			return
		}
		select {
		case <-retry.C:
		case <-limit:
			s.Errorf("applying %s: %v", a.Resource, err)
			return
		}
	}
}

func (s *suite) many() {
	const n = 20
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			name := fmt.Sprintf("many-%02d", i)
			for g := range int64(3) {
				s.applyWithRetry(s.application(name, fmt.Sprint(g), g+1))
			}
		})
	}
	all.Wait()
	found := s.discover(s.byLabels(map[string]string{"suite": s.prefix + "all"}))
	if len(found) != n {
		s.Fatalf("found %d, want %d", len(found), n)
	}
	for i, o := range found {
		if want := fmt.Sprintf("%smany-%02d", s.prefix, i); meta(o, "name") != want || s.Value(o) != "2" {
			s.Errorf("%d: %s has value %s; want %s and 2", i, meta(o, "name"), s.Value(o), want)
		}
	}
}
