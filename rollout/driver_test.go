package rollout

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/internal/gitrepo"
)

func TestARolloutRunsOverDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("soak: {sector: 48h}\nfreeze: [{from: 'Fri 16:00', to: 'Mon 08:00', zone: Europe/Berlin}]\n")
		start := time.Now() // Saturday 1 January 2000 in a bubble
		d := m.driver(healthy{})
		d.Interval = 3 * time.Minute
		record, err := d.Run(t.Context())
		if err != nil || record.State.Phase != Done {
			t.Fatal(record.State, err)
		}
		if got := m.versions(t); got != "r1=2 r2=2 r3=2" {
			t.Error(got)
		}
		monday := time.Date(2000, 1, 3, 7, 0, 0, 0, time.UTC)
		var first, last time.Time
		for _, s := range record.State.Targets {
			if first.IsZero() || s.Changed.Before(first) {
				first = s.Changed
			}
			if s.Changed.After(last) {
				last = s.Changed
			}
		}
		if first.Before(monday) || first.After(monday.Add(d.Interval)) {
			t.Errorf("begun at %s, the first change at %s, want Monday 08:00 in Berlin", start, first)
		}
		if last.Sub(first) < 48*time.Hour || record.State.Ended.Sub(last) < 48*time.Hour {
			t.Errorf("changes from %s to %s, end %s: a soak of 48h is missing", first, last, record.State.Ended)
		}
		if n := len(m.commits); n > 20 {
			t.Errorf("%d commits:\n%s", n, strings.Join(m.subjects(), "\n"))
		}
		if text := string(m.commits[len(m.commits)-1].files["config/prod/regions/r1.yaml"].Data); !strings.Contains(text,
			"# first") {
			t.Errorf("a comment is lost:\n%s", text)
		}
	})
}

// TestAKilledDriverIsContinued kills the driver after each of its commits, and begins another.
func TestAKilledDriverIsContinued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("soak: {wave: 10m, sector: 20m}\nshares: [50]\n")
		drivers := 0
		for phase := Phase(""); phase != Done; drivers++ {
			if drivers > 50 {
				t.Fatalf("no end after:\n%s", strings.Join(m.subjects(), "\n"))
			}
			ctx, kill := context.WithCancel(t.Context())
			d := m.driver(healthy{})
			d.Show = func(Event) { kill() }
			record, err := d.Run(ctx)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			kill()
			phase = record.State.Phase
		}
		if got := m.versions(t); got != "r1=2 r2=2 r3=2" || drivers < 8 {
			t.Errorf("%s after %d drivers", got, drivers)
		}
	})
}

func TestAFailedGateStopsTheRolloutAndReverts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("onFailure: revert\n")
		record, err := m.driver(healthy{"r2": Failing}).Run(t.Context())
		if !errors.Is(err, ErrUndone) || !strings.Contains(err.Error(), "Reverted: r2: gate api: 503") ||
			record.State.Phase != Reverted || record.Radius != (Radius{2, 2}) {
			t.Fatal(record.State, record.Radius, err)
		}
		if got := m.versions(t); got != "r1=1 r2=1 r3=1" {
			t.Error(got)
		}
		m = newMemory("")
		record, err = m.driver(healthy{"r2": Failing}).Run(t.Context())
		if !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "r2: gate api: 503") {
			t.Fatal(err)
		}
		if got := m.versions(t); got != "r1=2 r2=2 r3=1" {
			t.Error(got)
		}
		record, err = m.driver(nil).Command(t.Context(), func(_ Plan, s State) (State, []Effect, error) {
			return s.Command(Revert, "ann", time.Now())
		})
		if err != nil || record.State.Phase != Reverted {
			t.Fatal(record.State, err)
		}
		if got := m.versions(t); got != "r1=1 r2=1 r3=1" {
			t.Error(got)
		}
	})
}

// TestACommandThatFindsItsWorkDoneWritesNothing: a second pause and a second resume leave record and deadlines alone.
func TestACommandThatFindsItsWorkDoneWritesNothing(t *testing.T) {
	begun := time.Unix(1_000_000, 0)
	s := newState(begun)
	s.Targets = map[Target]TargetState{"r1": {Changed: begun}}
	for _, c := range []struct {
		phase   Phase
		command Command
		effects int
	}{{Running, Resume, 0}, {Running, Pause, 1}, {Paused, Pause, 0}, {Paused, Resume, 1}, {Halted, Resume, 1}} {
		s.Phase = c.phase
		next, effects, err := s.Command(c.command, "ann", begun.Add(time.Hour))
		if err != nil || len(effects) != c.effects || c.effects == 0 && !reflect.DeepEqual(next, s) {
			t.Errorf("%s of a rollout that is %s: %+v, %v, %v", c.command, c.phase, next, effects, err)
		}
	}
}

// TestTwoDriversNeverActAtOnce runs two drivers. Each region is changed by one commit.
func TestTwoDriversNeverActAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		other := m.driver(healthy{})
		d := m.driver(healthy{})
		d.Interval = time.Second
		var meet func()
		meet = func() { // before each commit of d, the other does the same step first
			if _, err := other.observeAndStep(t.Context()); err != nil && !errors.Is(err, gitrepo.ErrStale) {
				t.Error(err)
			}
		}
		d.Show = func(Event) { m.before = meet }
		m.before = meet
		record, err := d.Run(t.Context())
		if err != nil || record.State.Phase != Done {
			t.Fatal(record.State, err)
		}
		changed := slices.DeleteFunc(m.subjects(), func(s string) bool { return !strings.Contains(s, ": change ") })
		want := []string{"rollout next: sector canary, rest: change r1", "rollout next: sector main, rest: change r2",
			"rollout next: sector main, rest: change r3"}
		if !slices.Equal(changed, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(changed, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestADriverStopsAtABranchThatItDoesNotUnderstand(t *testing.T) {
	for name, c := range map[string]struct {
		do                    func(m *memory)
		want                  string
		wantPause, wantRevert string // errors of commands; "": the command works
	}{
		"a rewritten history": {func(m *memory) {
			m.commits = append(m.commits, commit{files: m.commits[0].files})
		}, "config/prod/regions/r1.yaml:3: the history of the branch was rewritten", "has not begun", "has not begun"},
		"a changed rollout": {func(m *memory) {
			m.write(rolloutFile, string(m.commits[0].files[rolloutFile].Data)+"maxInFlight: 3\n")
		}, "has changed since the rollout began", "", ""},
		"a removed rollout": {func(m *memory) { m.remove(rolloutFile) }, "reading the rollout", "", ""},
		"a damaged record": {func(m *memory) { m.write(RecordPath(rolloutFile), "{") }, "next.record.json is damaged",
			"is damaged", "is damaged"},
		"an empty record": {func(m *memory) { m.write(RecordPath(rolloutFile), "{}") }, "it has no plan", "it has no plan",
			"it has no plan"},
		"a mistake": {func(m *memory) { m.write("config/prod/regions/r3.yaml", "sektor: x\n") },
			"config/prod/regions/r3.yaml:1: unknown key sektor", "", "unknown key sektor"},
		"a region that left": {func(m *memory) { m.remove("config/prod/regions/r3.yaml") },
			"r3 is in the plan and is not declared any more", "", ""},
		"a changed region that left": {func(m *memory) { m.remove("config/prod/regions/r1.yaml") },
			"r1 is in the plan and is not declared any more", "", "r1.yaml:1: r1 was removed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory("")
			d := m.driver(healthy{"r1": Unreadable})
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			defer stop()
			if _, err := d.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			c.do(m)
			commits, branch := len(m.commits), slices.Clone(m.commits)
			if _, err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", name, err, c.want)
			}
			if _, err := m.driver(healthy{}).Run(t.Context()); name != "a rewritten history" && (err == nil ||
				!strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: another driver: got %v, want %q", name, err, c.want)
			}
			if len(m.commits) != commits && name != "a rewritten history" {
				t.Errorf("%s: %d commits were added", name, len(m.commits)-commits)
			}
			forced := c.wantRevert
			if name == "a changed region that left" {
				forced = ""
			}
			for command, want := range map[Command]string{Pause: c.wantPause, Revert: c.wantRevert, ForceRevert: forced} {
				copied := &memory{commits: slices.Clone(branch)}
				record, err := copied.driver(nil).Command(t.Context(), func(_ Plan, s State) (State, []Effect, error) {
					return s.Command(command, "ann", time.Now())
				})
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s: %s: got %v, want %q", name, command, err, want)
				}
				if want != "" || command == Pause {
					continue
				}
				if got := copied.versions(t); strings.Contains(got, "=2") {
					t.Errorf("%s: after the revert: %s", name, got)
				}
				removed := name == "a changed region that left"
				if removed != slices.Equal(record.Kept, []string{"r1: its file config/prod/regions/r1.yaml was removed"}) {
					t.Errorf("%s: kept %q", name, record.Kept)
				}
			}
		})
	}
}

func TestADriverSurvivesANetworkThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		m.broken = 5
		shown := 0
		d := m.driver(healthy{})
		d.Show = func(e Event) {
			if strings.Contains(e.What, "no route to host") {
				shown++
			}
		}
		if record, err := d.Run(t.Context()); err != nil || record.State.Phase != Done || shown != 5 {
			t.Errorf("%v, %v, %d errors shown", record.State, err, shown)
		}
	})
}

// TestOperatorsCommandTheRolloutThroughTheBranch pauses, resumes and approves while a driver runs.
func TestOperatorsCommandTheRolloutThroughTheBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("approval: [main]\n")
		command := func(do func(Plan, State) (State, []Effect, error)) {
			if _, err := m.driver(nil).Command(t.Context(), do); err != nil {
				t.Error(err)
			}
		}
		go func() {
			<-time.After(time.Hour)
			if got := m.versions(t); got != "r1=2 r2=1 r3=1" {
				t.Errorf("before the approval: %s", got)
			}
			command(func(_ Plan, s State) (State, []Effect, error) { return s.Command(Pause, "ann", time.Now()) })
			command(func(p Plan, s State) (State, []Effect, error) { return p.Approve(s, "main", "bob", time.Now()) })
			<-time.After(time.Hour)
			if got := m.versions(t); got != "r1=2 r2=1 r3=1" {
				t.Errorf("while it is paused: %s", got)
			}
			command(func(_ Plan, s State) (State, []Effect, error) { return s.Command(Resume, "ann", time.Now()) })
		}()
		record, err := m.driver(healthy{}).Run(t.Context())
		if err != nil || record.State.Phase != Done || record.State.Approvals["main"].By != "bob" {
			t.Error(record.State, err)
		}
	})
}

func TestARefusalOfTheRemoteEndsTheRunAndTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		m.refusal = gitrepo.ErrRefused
		if _, err := m.driver(healthy{}).Run(t.Context()); !errors.Is(err, gitrepo.ErrRefused) {
			t.Errorf("got %v", err)
		}
	})
}

// TestRolloutsOfOneEnvironmentFollowEachOther begins a second rollout while the first runs, and after its end.
func TestRolloutsOfOneEnvironmentFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if _, err := m.driver(healthy{}).Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		m.write("rollouts/other.yaml", strings.Replace(string(m.commits[0].files[rolloutFile].Data), "'2'", "'3'", 1))
		other := m.driver(healthy{})
		other.File = "rollouts/other.yaml"
		const want = "rollouts/next.record.json changes the environment prod and has not ended (Running)"
		if _, err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if _, err := m.driver(healthy{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if record, err := other.Run(t.Context()); err != nil || record.State.Phase != Done {
			t.Errorf("%v, %v", record.State, err)
		}
		if got := m.versions(t); got != "r1=3 r2=3 r3=3" {
			t.Error(got)
		}
	})
}

// TestADriverForgetsItsSoakWhenAGateHasFailed lets another driver stop the rollout, and an operator resume it, between
// two observations of a driver.
func TestADriverForgetsItsSoakWhenAGateHasFailed(t *testing.T) {
	s := newState(time.Now())
	s.Soaked = Duration(time.Hour)
	d := &Driver{lastText: []byte("{}"), state: s}
	r := snapshot{recordText: []byte("{ }"), record: Recorded{State: newState(time.Now())}}
	if got := d.stateWithObservations(r).Soaked; got != s.Soaked {
		t.Errorf("after a command the soak is %s", time.Duration(got))
	}
	r.record.State.Halts = 1
	if got := d.stateWithObservations(r).Soaked; got != 0 {
		t.Errorf("after a failed gate the soak is %s", time.Duration(got))
	}
}
