package adapter

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func plain(d time.Duration) time.Duration { return d }

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func of(id string, generation int64) task {
	return task{Event: Event{ID: id, Generation: generation}}
}

func take(t *testing.T, q *queue, now time.Time) string {
	t.Helper()
	got, ok, wait := q.next(now)
	if !ok {
		return "wait " + wait.String()
	}
	return fmt.Sprintf("%s %d", got.ID, got.Generation)
}

func expect(t *testing.T, q *queue, now time.Time, want string) {
	t.Helper()
	if got := take(t, q, now); got != want {
		t.Fatalf("next is %q, want %q", got, want)
	}
}

func TestQueuedEventsOfAResourceBecomeOneRun(t *testing.T) {
	q := newQueue(plain)
	q.add(of("a", 1), noon)
	q.add(of("b", 1), noon)
	q.add(of("a", 3), noon)
	q.add(of("a", 2), noon) // late
	expect(t, q, noon, "a 3")
	expect(t, q, noon, "b 1")
	expect(t, q, noon, "wait 0s")
	q.endRun("a", succeeded, noon)
	q.endRun("b", succeeded, noon)
	expect(t, q, noon, "wait 0s")
	if len(q.items) != 0 {
		t.Errorf("%d resources are kept", len(q.items))
	}
}

// Repeated events of the sentinel neither delay new events nor starve.
func TestNewEventsGoBeforeRepetitions(t *testing.T) {
	q := newQueue(plain)
	old := []string{"a", "b", "c", "x", "y"}
	for _, id := range old {
		q.add(of(id, 1), noon)
	}
	for _, id := range old {
		expect(t, q, noon, id+" 1")
	}
	for _, id := range old {
		q.endRun(id, succeeded, noon)
		q.add(of(id, 1), noon) // again
	}
	for _, id := range []string{"d", "e", "f", "g"} {
		q.add(of(id, 1), noon)
	}
	q.add(of("c", 2), noon)    // changed by its owner
	q.change(of("b", 1), noon) // reported by a watch
	for _, want := range []string{"b 1", "c 2", "a 1", "d 1", "e 1", "f 1", "x 1", "g 1", "y 1"} {
		expect(t, q, noon, want)
	}
	expect(t, q, noon, "wait 0s")
	q.sweep(noon.Add(2 * rememberRunsFor))
	if len(q.lastRuns) != 0 {
		t.Errorf("%d generations are remembered", len(q.lastRuns))
	}
}

func TestAnEventDuringARunCausesAnotherRun(t *testing.T) {
	q := newQueue(plain)
	q.add(of("a", 1), noon)
	expect(t, q, noon, "a 1")
	q.add(of("a", 2), noon)
	expect(t, q, noon, "wait 0s") // not beside itself
	q.endRun("a", succeeded, noon)
	expect(t, q, noon, "a 2")
	q.endRun("a", succeeded, noon)
	expect(t, q, noon, "wait 0s")
}

func TestAFailedRunIsRetriedAFewTimes(t *testing.T) {
	q := newQueue(plain)
	q.add(of("a", 1), noon)
	now := noon
	expect(t, q, now, "a 1")
	for _, pause := range []time.Duration{1, 2, 4, 8, 16} {
		q.endRun("a", failed, now)
		expect(t, q, now, "wait "+(pause*time.Second).String())
		now = now.Add(pause * time.Second)
		expect(t, q, now, "a 1")
	}
	q.endRun("a", failed, now)
	expect(t, q, now, "wait 0s") // the sentinel's
	q.add(of("a", 1), now)
	expect(t, q, now, "a 1")
	q.endRun("a", failed, now)
	expect(t, q, now, "wait 1s")
	q.add(of("a", 1), now) // an event does not wait for the retry
	expect(t, q, now, "a 1")
}

// However often a status changes, the run for a change begins at once, or
// changeInterval after the run before it began.
func TestAChangeOfAStatusWaitsAtMostTheInterval(t *testing.T) {
	q := newQueue(plain)
	q.add(of("a", 1), noon)
	expect(t, q, noon, "a 1")
	q.endRun("a", repaired, noon)
	now := noon
	for n := range 100 { // without a pause of settledAfter
		now = now.Add(changeInterval)
		q.change(of("a", 1), now)
		if got := take(t, q, now); got != "a 1" {
			t.Fatalf("change %d: next is %q", n, got)
		}
		q.endRun("a", succeeded, now)
	}
	now = now.Add(50 * time.Millisecond) // after the last run began
	q.change(of("a", 1), now)
	expect(t, q, now, "wait 150ms")
	q.change(of("a", 1), now.Add(time.Millisecond)) // further changes do not defer the run
	expect(t, q, now.Add(150*time.Millisecond), "a 1")
}

// Another writer changes an object back after each run.
func TestRepairsOfAContestedObjectAreSpaced(t *testing.T) {
	q := newQueue(plain)
	now := noon
	repair := func(want string) {
		t.Helper()
		q.change(of("a", 1), now)
		expect(t, q, now, want)
	}
	for range promptRepairs + 1 {
		repair("a 1")
		q.endRun("a", repaired, now)
		now = now.Add(changeInterval)
	}
	now = now.Add(-changeInterval)
	for _, pause := range []time.Duration{200, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000} {
		repair("wait " + (pause * time.Millisecond).String())
		now = now.Add(pause * time.Millisecond)
		expect(t, q, now, "a 1")
		q.endRun("a", repaired, now)
	}
	q.change(of("a", 1), now)
	q.add(of("a", 1), now) // an event of the bus has no pause
	expect(t, q, now, "a 1")
	q.change(of("a", 1), now) // during the run
	q.endRun("a", repaired, now)
	expect(t, q, now, "wait 10s")
	q.add(of("a", 2), now) // a new generation begins anew
	expect(t, q, now, "a 2")
	q.endRun("a", repaired, now)
	now = now.Add(changeInterval)
	q.change(of("a", 2), now)
	expect(t, q, now, "a 2")
	q.endRun("a", succeeded, now)
}

func TestTheStateOfAnUnchangedResourceExpires(t *testing.T) {
	q := newQueue(plain)
	now := noon
	for range 2 * promptChanges {
		q.change(of("a", 1), now)
		now = now.Add(longestRepairPause)
		expect(t, q, now, "a 1")
		q.endRun("a", repaired, now)
	}
	now = now.Add(settledAfter + time.Second)
	q.change(of("a", 1), now) // the counts begin anew
	expect(t, q, now, "a 1")
	q.endRun("a", succeeded, now)
	now = now.Add(2 * settledAfter)
	q.add(of("b", 1), now)
	expect(t, q, now, "b 1")
	q.endRun("b", succeeded, now)
	if len(q.items) != 0 {
		t.Errorf("%d resources are kept", len(q.items))
	}
}

// One trace covers the request up to the final report, also if a watch reports later that an
// applied object became ready.
func TestAnObservedChangeHasTheTraceOfTheLastRun(t *testing.T) {
	q := newQueue(plain)
	next := func(now time.Time, want string) {
		t.Helper()
		got, ok, _ := q.next(now)
		if !ok || got.trace != want {
			t.Fatalf("%v, trace %q, want %q", ok, got.trace, want)
		}
		q.endRun(got.ID, succeeded, now)
	}
	posted := of("a", 1)
	posted.trace = "posted"
	q.change(of("a", 1), noon)
	next(noon, "")
	q.add(posted, noon)
	next(noon, "posted")
	for range 2 {
		q.change(of("a", 1), noon)
		next(noon, "posted")
	}
	patched := of("a", 2)
	patched.trace = "patched"
	q.add(patched, noon)
	q.change(of("a", 1), noon) // of what the last generation applied
	next(noon, "patched")
	q.change(of("a", 1), noon)
	next(noon, "patched")
	patched.Generation, patched.trace = 3, "again"
	q.add(patched, noon)
	if got, _, _ := q.next(noon); got.trace != "again" {
		t.Fatalf("trace %q", got.trace)
	}
	q.change(of("a", 3), noon) // of what it applies just now
	q.endRun("a", succeeded, noon)
	next(noon, "again")
}

// In each sequence of events a resource has at most one run at a time, and after its last
// event it is run once more, with the highest generation of its events.
func TestNoEventIsLostAndNoResourceRunsTwiceAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(plain)
		now := noon
		id := rapid.SampledFrom([]string{"a", "b", "c"})
		running := map[string]int64{}
		want := map[string]int64{} // by id: the next run must have at least this generation
		begin := func() bool {
			got, ok, wait := q.next(now)
			if !ok {
				if wait < 0 {
					t.Fatalf("waits %s", wait)
				}
				return false
			}
			if _, is := running[got.ID]; is {
				t.Fatalf("%s runs twice at once", got.ID)
			}
			if p, is := want[got.ID]; is && got.Generation < p {
				t.Fatalf("%s runs for generation %d after an event of generation %d", got.ID, got.Generation, p)
			}
			running[got.ID] = got.Generation
			delete(want, got.ID)
			return true
		}
		t.Repeat(map[string]func(*rapid.T){
			"event": func(t *rapid.T) {
				e := of(id.Draw(t, "id"), rapid.Int64Range(1, 5).Draw(t, "generation"))
				if rapid.Bool().Draw(t, "watch") {
					q.change(e, now)
				} else {
					q.add(e, now)
				}
				want[e.ID] = max(want[e.ID], e.Generation)
			},
			"begin": func(*rapid.T) { begin() },
			"end": func(t *rapid.T) {
				name := id.Draw(t, "id")
				if _, is := running[name]; is {
					delete(running, name)
					q.endRun(name, rapid.SampledFrom([]ending{succeeded, repaired, failed, failedAfterWrite, notBegun}).
						Draw(t, "how"), now)
				}
			},
			"pass": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(*rapid.T) {},
		})
		for range 1000 {
			for name := range running {
				delete(running, name)
				q.endRun(name, succeeded, now)
			}
			if !begin() {
				now = now.Add(longestRepairPause)
			}
		}
		if len(want) > 0 || q.countWaiting() > 0 {
			t.Fatalf("never run: %v, %d wait", want, q.countWaiting())
		}
	})
}
