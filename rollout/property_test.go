package rollout

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawRollout returns a random rollout and a fleet for it.
func drawRollout(t *rapid.T) (Rollout, Fleet) {
	fleet := Fleet{}
	var names, sectors []string
	for i := range rapid.IntRange(1, 4).Draw(t, "sectors") {
		sectors = append(sectors, fmt.Sprintf("s%d", i))
	}
	fleet.Sectors = sectors
	for i := range rapid.IntRange(1, 12).Draw(t, "regions") {
		r := Region{Name: fmt.Sprintf("r%02d", i), Sector: rapid.SampledFrom(sectors).Draw(t, "sector")}
		names = append(names, r.Name)
		for j := range rapid.IntRange(0, 3).Draw(t, "clusters") {
			r.Clusters = append(r.Clusters, fmt.Sprintf("mc%d", j))
			names = append(names, r.Name+"/"+r.Clusters[j])
		}
		fleet.Regions = append(fleet.Regions, r)
	}
	minutes := func(name string, low, high int) time.Duration {
		return time.Duration(rapid.IntRange(low, high).Draw(t, name)) * time.Minute
	}
	r := Rollout{
		Canaries:    rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 3, rapid.ID).Draw(t, "canaries"),
		Shares:      rapid.SliceOfNDistinct(rapid.IntRange(1, 99), 0, 3, rapid.ID).Draw(t, "shares"),
		MaxInFlight: rapid.IntRange(1, 4).Draw(t, "maxInFlight"),
		Soak:        Soak{Wave: minutes("wave soak", 0, 20), Sector: minutes("sector soak", 0, 60)},
		Expected:    10 * time.Minute, Settle: minutes("settle", 0, 5), Deadline: minutes("deadline", 6, 90),
		Approval:  rapid.SliceOfNDistinct(rapid.SampledFrom(sectors), 0, 2, rapid.ID).Draw(t, "approval"),
		OnFailure: rapid.SampledFrom([]string{StopOnFailure, RevertOnFailure}).Draw(t, "onFailure"),
	}
	slices.Sort(r.Shares)
	if rapid.Bool().Draw(t, "freeze") {
		r.Freeze = []Freeze{{From: "16:00", To: "08:00", Zone: "Europe/Berlin"}}
	}
	return r, fleet
}

// history is what a test knows of a rollout beside its state.
type history struct {
	plan      Plan
	fleet     Fleet
	completed map[int]time.Time // when the last target of a wave became healthy
}

// TestStepKeepsItsPromises runs random rollouts against random observations, commands, and restarts of the driver.
func TestStepKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, fleet := drawRollout(t)
		plan, err := newPlan(r, fleet)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := newPlan(r, fleet); !reflect.DeepEqual(plan.Waves, again.Waves) {
			t.Fatal("two plans of the same rollout differ")
		}
		checkPlan(t, plan, fleet)
		h := &history{plan: plan, fleet: fleet, completed: map[int]time.Time{}}
		now := time.Date(2026, 10, 24, 5, 0, 0, 0, time.UTC)
		s := newState(now)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second)
			s = h.step(t, s, now)
		}
	})
}

// checkPlan checks that each region is in the plan once, that sectors follow their order, and that waves of regions add
// up.
func checkPlan(t *rapid.T, plan Plan, fleet Fleet) {
	seen, sector := map[Target]bool{}, -1
	for _, w := range plan.Waves {
		at := slices.Index(fleet.Sectors, w.Sector)
		if at < sector {
			t.Fatalf("sector %s after %s", w.Sector, fleet.Sectors[sector])
		}
		sector = at
		for _, target := range w.Targets {
			if seen[target] {
				t.Fatalf("%s is there twice", target)
			}
			seen[target] = true
		}
	}
	for _, region := range fleet.Regions {
		if !seen[Target(region.Name)] {
			t.Fatalf("the region %s is in no wave", region.Name)
		}
	}
}

func (h *history) step(t *rapid.T, s State, now time.Time) State {
	switch rapid.IntRange(0, 19).Draw(t, "command") {
	case 0:
		s, _, _ = s.Command(rapid.SampledFrom([]Command{Pause, Resume}).Draw(t, "which"), "ann", now)
	case 1:
		s, _, _ = h.plan.Approve(s, rapid.SampledFrom(h.fleet.Sectors).Draw(t, "approved"), "ann", now)
	case 2:
		s.passedAt, s.savedSoak = time.Time{}, s.Soaked // a new driver
	}
	seen, worst := Observation{}, Passing
	for _, target := range sortedTargets(s.Targets) {
		switch rapid.IntRange(0, 29).Draw(t, "health") {
		case 0:
			seen[target] = Health{Failing, "failing"}
			worst = Failing
		case 1, 2:
			if worst == Passing {
				worst = Unreadable
			}
		default:
			seen[target] = Health{Passing, ""}
		}
	}
	next, effects := h.plan.Step(s, seen, now)
	if again, other := h.plan.Step(s, seen, now); !reflect.DeepEqual(next, again) || !reflect.DeepEqual(effects, other) {
		t.Fatal("two steps from the same state differ")
	}
	h.check(t, s, next, effects, worst, now)
	return next
}

func (h *history) check(t *rapid.T, s, next State, effects []Effect, worst Verdict, now time.Time) {
	if n := next.InFlight(); !next.Phase.IsEnd() && n > h.plan.rollout.MaxInFlight {
		t.Fatalf("%d targets in flight, %d allowed", n, h.plan.rollout.MaxInFlight)
	}
	if len(effects) > 1 {
		t.Fatalf("a step has %d effects", len(effects))
	}
	if active := s.Phase == Running || s.Phase == Paused; active && worst == Failing && next.Phase != Halted &&
		next.Phase != Reverted {
		t.Fatalf("phase %s after a gate failed", next.Phase)
	}
	for i, w := range h.plan.Waves {
		if _, noted := h.completed[i]; !noted && h.plan.isWaveHealthy(next, w) {
			h.completed[i] = now
		}
	}
	for _, e := range effects {
		switch e.Kind {
		case Restore:
			if !slices.Equal(e.Targets, sortedTargets(s.Targets)) {
				t.Fatalf("restores %v, and %v are changed", e.Targets, sortedTargets(s.Targets))
			}
		case Apply:
			h.checkApply(t, s, e, worst, now)
		}
	}
}

// checkApply checks that nothing forbids a change, and that everything before it has soaked.
func (h *history) checkApply(t *rapid.T, s State, e Effect, worst Verdict, now time.Time) {
	if s.Phase != Running || worst != Passing {
		t.Fatalf("%v changed in phase %s while gates are %s", e.Targets, s.Phase, worst)
	}
	if _, thawed := h.plan.freezes.firstInstantOutside(now); !thawed {
		t.Fatal("changed in a freeze without an end")
	}
	for _, w := range h.plan.freezes {
		if _, in := w.endAfter(now); in {
			t.Fatalf("%v changed in a freeze at %s", e.Targets, now)
		}
	}
	wave := slices.IndexFunc(h.plan.Waves, func(w Wave) bool { return slices.Contains(w.Targets, e.Targets[0]) })
	for i, earlier := range h.plan.Waves[:wave] {
		healthy, complete := h.completed[i]
		if !complete {
			t.Fatalf("wave %d changes before wave %d is healthy", wave, i)
		}
		if now.Sub(healthy) < time.Duration(earlier.Soak) {
			t.Fatalf("wave %d changes %s after wave %d is healthy, which soaks %s", wave, now.Sub(healthy), i,
				time.Duration(earlier.Soak))
		}
	}
	sector := h.plan.Waves[wave].Sector
	if _, approved := s.Approvals[sector]; h.plan.needsApproval(sector) && !approved {
		t.Fatalf("%v changed before the sector %s is approved", e.Targets, sector)
	}
}
