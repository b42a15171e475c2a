package drill

import (
	"testing"
	"time"

	"atoll.dev/hosting/controlplane"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// numbers returns a draw of the given numbers, one after the other, then 0.
func numbers(list ...int64) draw {
	return func(n int64) int64 {
		if len(list) == 0 {
			return 0
		}
		next := list[0]
		list = list[1:]
		return min(next, n-1)
	}
}

// windowOf is the window of a plane with a snapshot of long ago and two whole chains.
func windowOf() controlplane.BackupWindow {
	return controlplane.BackupWindow{From: noon.Add(-50 * time.Hour), Stored: noon.Add(300 * time.Millisecond),
		Chains: []controlplane.BackupChain{
			{Taken: noon.Add(-50 * time.Hour).Add(700 * time.Millisecond)},
			{Taken: noon.Add(-70 * time.Minute).Add(400 * time.Millisecond), EverySecond: true},
			{Taken: noon.Add(-10 * time.Minute).Add(200 * time.Millisecond), EverySecond: true},
		}}
}

func TestEachSecondOfAWindowIsDrawn(t *testing.T) {
	w := windowOf()
	const all = 1 + 3600 + 601 // the snapshot's, and those of the chains; the last one is that of noon
	if n := secondsOf(w); n != all {
		t.Fatalf("the window has %d seconds, want %d", n, all)
	}
	seen := map[time.Time]bool{}
	for n := range int64(all) {
		at := secondAt(w, n)
		if seen[at] || !contains(w, at) || at.After(w.Stored) || at.Nanosecond() != 0 {
			t.Fatalf("second %d is %s", n, at)
		}
		seen[at] = true
	}
	for _, at := range []time.Time{noon.Add(-50 * time.Hour), noon.Add(-70 * time.Minute), noon} {
		if !seen[at] {
			t.Errorf("%s is never drawn", at)
		}
	}
	for _, at := range []time.Time{noon.Add(-49 * time.Hour), noon.Add(-71 * time.Minute), noon.Add(time.Second)} {
		if contains(w, at) {
			t.Errorf("the window has %s", at)
		}
	}
	for _, n := range []int64{0, 1, 240, 1000} {
		at := recentSecond(w, numbers(n))
		if at.Before(noon.Add(-recentSpan)) || at.After(noon) {
			t.Errorf("the recent second is %s", at)
		}
	}
	w.Chains = w.Chains[2:]
	w.Chains[0].Taken = noon.Add(-2500 * time.Millisecond)
	if at := recentSecond(w, numbers(0)); at != noon.Add(-3*time.Second) {
		t.Errorf("the first recent second of a new plane is %s", at)
	}
	w.Stored = noon.Add(-time.Hour) // the clock was set back, and the window has no chain since
	if at := recentSecond(w, numbers(0)); at != w.Stored {
		t.Errorf("the recent second of a backup whose clock was set back is %s", at)
	}
	if n := secondsOf(controlplane.BackupWindow{}); n != 0 {
		t.Errorf("a window without chains has %d seconds", n)
	}
}

func TestWhichBackupIsDrilled(t *testing.T) {
	small := func(name string) candidate {
		return candidate{ID: controlplane.ID{Namespace: "n", Name: name}, Window: windowOf(), Memory: 1 << 30}
	}
	large := small("large")
	large.Memory = 4 << 30
	empty := small("empty")
	empty.Window.Chains = nil
	list := []candidate{empty, large, small("a"), small("b"), small("c")}
	second := noon.Add(-20 * time.Minute)
	failed := func(names ...string) map[string]failure {
		all := map[string]failure{}
		for _, n := range names {
			all["n/"+n] = failure{Second: second}
		}
		return all
	}
	drilled := func(name string) controlplane.ID { return controlplane.ID{Namespace: "n", Name: name} }
	for _, c := range []struct {
		name   string
		state  state
		random draw
		want   string
		second time.Time // zero: any
	}{
		{"any, and any second", state{}, numbers(1, 1, 1), "b", noon.Add(-70 * time.Minute)},
		{"any, and a recent second", state{}, numbers(2, 0, 5), "c", noon.Add(5*time.Second - recentSpan)},
		{"the failed one, its second", state{Failed: failed("b")}, numbers(2), "b", second},
		{"not twice in a row", state{Failed: failed("b"), Drilled: drilled("b")}, numbers(1), "c", time.Time{}},
		{"another failed one", state{Failed: failed("b", "a"), Drilled: drilled("b")}, numbers(1), "a", second},
		{"a failed one without room", state{Failed: failed("large")}, numbers(0), "a", time.Time{}},
		{"a difference, recent", state{Failed: map[string]failure{"n/b": {Second: second, IsDifferent: true}}}, numbers(0, 7),
			"b", noon.Add(7*time.Second - recentSpan)},
		{"a second that is in no backup any more", state{Failed: map[string]failure{"n/b": {}}}, numbers(0, 1, 0), "b",
			noon.Add(-50 * time.Hour)},
	} {
		p, ok := c.state.choose(list, 2<<30, c.random)
		if !ok || p.Plane.Name != c.want || !c.second.IsZero() && !p.Second.Equal(c.second) {
			t.Errorf("%s: %+v, %v; want %s, %s", c.name, p, ok, c.want, c.second)
		}
	}
	if p, ok := (state{}).choose(list, 1<<30, numbers()); ok {
		t.Errorf("without memory to spare: %+v", p)
	}
	alone := []candidate{small("a")}
	if p, ok := (state{Failed: failed("a"), Drilled: drilled("a")}).choose(alone, 2<<30, numbers()); !ok ||
		p.Second != second {
		t.Errorf("a failed plane that is alone: %+v, %v", p, ok)
	}
}

func TestWhatADrillChanges(t *testing.T) {
	p := plan{controlplane.ID{Namespace: "n", Name: "a"}, noon.Add(-time.Minute)}
	s := state{}.after(p, result{failed: &failure{Second: p.Second, Message: "damaged"}}, noon)
	if s.Last != noon || !s.Succeeded.IsZero() || s.Failed["n/a"].Message != "damaged" || s.Drilled != p.Plane {
		t.Errorf("after a failure: %+v", s)
	}
	if moved := s.withoutSecond(p); !moved.Failed["n/a"].Second.IsZero() || s.Failed["n/a"].Second.IsZero() {
		t.Errorf("a second that is in no backup: %+v, before %+v", moved, s)
	}
	if cleared := s.after(p, result{}, noon.Add(time.Hour)); len(cleared.Failed) != 0 ||
		cleared.Succeeded != noon.Add(time.Hour) || len(s.Failed) != 1 {
		t.Errorf("after a success: %+v, before %+v", cleared, s)
	}
	different := state{}.after(p, result{&failure{IsDifferent: true, Message: "differs"}, true}, noon)
	if kept := different.after(p, result{}, noon); kept.Failed["n/a"].Message != "differs" {
		t.Errorf("a difference is cleared without a comparison: %+v", kept)
	}
	if cleared := different.after(p, result{isCompared: true}, noon); len(cleared.Failed) != 0 {
		t.Errorf("a difference after a comparison: %+v", cleared)
	}
}

func TestWhichFailedDrillNeedsANewChain(t *testing.T) {
	id := controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}
	other := controlplane.ID{Namespace: "clusters-a", Name: "hc-b"}
	list := []candidate{{ID: id, Window: windowOf()}}
	for _, c := range []struct {
		name   string
		plane  controlplane.ID
		second time.Time
		want   bool
	}{
		{"the newest second", id, noon, true},
		{"the first second of the newest chain", id, noon.Add(-10 * time.Minute), true},
		{"a second of the chain before", id, noon.Add(-10*time.Minute - time.Second), false},
		{"a second of long ago", id, noon.Add(-50 * time.Hour), false},
		{"a plane that is gone", other, noon, false},
	} {
		if got := needsNewChain(list, plan{c.plane, c.second}); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
	if needsNewChain([]candidate{{ID: id}}, plan{id, noon}) {
		t.Error("a plane without a chain")
	}
}

func TestWhenADrillBegins(t *testing.T) {
	first := state{}.begin(time.Hour, noon, numbers(int64(20*time.Minute)))
	if wait := first.untilNext(time.Hour, noon); wait != 40*time.Minute {
		t.Errorf("the first drill begins after %s", wait)
	}
	for _, c := range []struct{ last, want time.Duration }{
		{-10 * time.Minute, 50 * time.Minute}, {-2 * time.Hour, 0}, {0, time.Hour},
	} {
		s := state{Last: noon.Add(c.last)}.begin(time.Hour, noon, numbers(1))
		if wait := s.untilNext(time.Hour, noon); wait != c.want {
			t.Errorf("a drill that ended at %s: the next after %s, want %s", c.last, wait, c.want)
		}
	}
	back := state{Last: noon.Add(48 * time.Hour)}.begin(time.Hour, noon, numbers(int64(time.Minute)))
	if wait := back.untilNext(time.Hour, noon); wait != 59*time.Minute {
		t.Errorf("after the clock was set back: %s", wait)
	}
	if wait := (state{Last: noon.Add(48 * time.Hour)}).untilNext(time.Hour, noon); wait != time.Hour {
		t.Errorf("when the clock is set back during a run: %s", wait)
	}
}
