// Package transporttest says what every transport of the adapter does: a suite
// of tests that each implementation passes, and one implementation in memory.
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
)

// Subject is a transport with what the suite has to know of it.
type Subject struct {
	Transport adapter.Transport
	Target    string // of Application, Search and Deletion

	// Object is an object that says value. Its name is unique in the transport.
	Object func(name, value string) adapter.Object
	// Value reads what an object says.
	Value func(adapter.Object) string

	// Disturb makes the object say value, as another does who does not go by the
	// transport.
	Disturb func(t testing.TB, name, value string)
	// Vanish deletes the object, as another does.
	Vanish func(t testing.TB, name string)
}

// patience bounds every wait; what is waited for takes milliseconds.
const patience = 3 * time.Minute

// Run runs the suite. Each call of subject may return the same transport: names
// are made unique.
func Run(t *testing.T, subject func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"what is not there is not found", (*suite).absent},
		{"what is applied is found by name and labels", (*suite).found},
		{"applying twice changes nothing", (*suite).twice},
		{"a higher generation changes, a lower one does not", (*suite).generations},
		{"the same generation repairs what others did", (*suite).drift},
		{"recreation", (*suite).recreation},
		{"deletion ends, and may be asked for again", (*suite).deletion},
		{"of a deleted resource nothing is made again", (*suite).onlyExisting},
		{"a watch tells of changes by others", (*suite).watch},
		{"many at once", (*suite).many},
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
		s.Fatalf("%s (%s), and it says %q; want %s and %q", done.Operation, done.Reason, s.Value(done.Object), op,
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

// says checks what a search by name finds.
func (s *suite) says(name, value string) adapter.Object {
	s.Helper()
	found := s.discover(s.search(name))
	if len(found) != 1 || s.Value(found[0]) != value {
		s.Fatalf("found %v, want one that says %q", found, value)
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
			s.Fatalf("in vain: %s", what)
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
	object := s.says("a", "2")
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
	before := s.says("a", "1")
	s.expect(s.apply(s.application("a", "1", 3)), adapter.Skipped, "1")
	if after := s.says("a", "1"); meta(after, "uid") != meta(before, "uid") {
		s.Errorf("another object: %v, was %v", after, before)
	}
}

func (s *suite) generations() {
	s.expect(s.apply(s.application("a", "1", 2)), adapter.Created, "1")
	s.expect(s.apply(s.application("a", "2", 3)), adapter.Updated, "2")
	s.expect(s.apply(s.application("a", "1", 2)), adapter.Skipped, "2")
	s.says("a", "2")
	s.expect(s.apply(s.application("a", "2", 10)), adapter.Updated, "2")
	if g := text(annotations(s.says("a", "2"))[annotationGeneration]); g != "10" {
		s.Errorf("generation %q, want 10", g)
	}
}

func (s *suite) drift() {
	s.apply(s.application("a", "1", 1))
	s.Disturb(s.T, s.prefix+"a", "other")
	s.eventually("the disturbance shows", func() bool {
		found := s.discover(s.search("a"))
		return len(found) == 1 && s.Value(found[0]) == "other"
	})
	s.expect(s.apply(s.application("a", "1", 1)), adapter.Updated, "1")
	s.says("a", "1")
}

func (s *suite) recreation() {
	s.apply(s.application("a", "1", 1))
	a := s.application("a", "2", 2)
	a.Recreate = true
	s.expect(s.apply(a), adapter.Recreated, "2")
	s.says("a", "2")
	s.expect(s.apply(a), adapter.Skipped, "2")
}

func (s *suite) deletion() {
	s.apply(s.application("a", "1", 1))
	object := s.says("a", "1")
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
	before := meta(s.says("a", "1"), "uid")
	s.expect(s.apply(a), adapter.Updated, "2")
	if uid := meta(s.says("a", "2"), "uid"); uid != before {
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
	told := make(chan adapter.Event, 1000)
	var done sync.WaitGroup
	done.Go(func() {
		if err := w.Watch(ctx, func(e adapter.Event) bool { told <- e; return true }); ctx.Err() == nil {
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
			// A watch takes a while to stand, so what it should tell of happens
			// until it does.
			provoke(i)
			for waiting := true; waiting; {
				select {
				case e := <-told:
					if e == s.event(name, 1) {
						return
					}
				case <-again.C:
					waiting = false
				case <-limit:
					s.Fatalf("nobody told of %s", name)
				}
			}
		}
	}
	await("early", func(i int) { s.Disturb(s.T, s.prefix+"early", fmt.Sprint("other ", i)) })
	s.apply(s.application("late", "1", 1))
	await("late", func(i int) { s.Disturb(s.T, s.prefix+"late", fmt.Sprint("other ", i)) })
	await("late", func(i int) {
		if i == 0 {
			s.Vanish(s.T, s.prefix+"late")
		}
	})
}

func (s *suite) many() {
	const n = 20
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			name := fmt.Sprintf("many-%02d", i)
			for g := range int64(3) {
				if _, err := s.Transport.Apply(s.Context(), s.application(name, fmt.Sprint(g), g+1)); err != nil {
					s.Error(err)
				}
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
			s.Errorf("%d: %s says %s; want %s and 2", i, meta(o, "name"), s.Value(o), want)
		}
	}
}
