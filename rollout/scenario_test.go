package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios runs the files of testdata. Their commands:
//
//	fleet                    sets the fleet: a line for each sector, in order: SECTOR: REGION/CLUSTER,CLUSTER REGION
//	parse                    parses a file of a rollout, and prints its mistakes
//	plan [at=TIME]           parses it, plans it for the fleet, and prints the waves and their schedule
//	begin at=TIME            begins the planned rollout
//	step after=DURATION ...  observes and steps; pass is the default of each changed target, fail=(T,...) and
//	                         unreadable=(T,...) name others. repeat=N does so N times and prints what is new.
//	restart                  forgets what a record in Git has not, as a killed driver does
//	pause, resume, abort, revert, approve sector=SECTOR
//
// Each prints the effects, then the state.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		s := &scenario{t: t}
		datadriven.RunTest(t, file, s.run)
	})
}

type scenario struct {
	t     *testing.T
	fleet Fleet
	plan  Plan
	state State
	now   time.Time
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "fleet":
		s.fleet = parseFleet(d.Input)
		return ""
	case "parse", "plan":
		return s.parse(d)
	case "begin":
		s.now, s.state = s.timeArg(d), newState(s.timeArg(d))
		return s.show(nil)
	case "step":
		return s.step(d)
	case "restart":
		s.state.passedAt, s.state.savedSoak = time.Time{}, s.state.Soaked
		return s.show(nil)
	case "approve":
		sector := ""
		d.ScanArgs(t, "sector", &sector)
		return s.command(func() (State, []Effect, error) { return s.plan.Approve(s.state, sector, "ann", s.now) })
	case "pause", "resume", "abort", "revert":
		return s.command(func() (State, []Effect, error) { return s.state.Command(Command(d.Cmd), "ann", s.now) })
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func (s *scenario) timeArg(d *datadriven.TestData) time.Time {
	at := ""
	d.ScanArgs(s.t, "at", &at)
	now, err := time.Parse(time.RFC3339, at)
	if err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	return now
}

func parseFleet(text string) (f Fleet) {
	for line := range strings.Lines(text) {
		sector, regions, _ := strings.Cut(strings.TrimSpace(line), ":")
		f.Sectors = append(f.Sectors, sector)
		for _, region := range strings.Fields(regions) {
			name, clusters, some := strings.Cut(region, "/")
			r := Region{Name: name, Sector: sector}
			if some {
				r.Clusters = strings.Split(clusters, ",")
			}
			f.Regions = append(f.Regions, r)
		}
	}
	slices.SortFunc(f.Regions, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	return f
}

func (s *scenario) parse(d *datadriven.TestData) string {
	r, err := Parse("r.yaml", []byte(d.Input))
	if err == nil && d.Cmd == "plan" {
		s.plan, err = newPlan(r, s.fleet)
	}
	if err != nil {
		return err.Error() + "\n"
	}
	if d.Cmd == "parse" {
		return "ok\n"
	}
	var out strings.Builder
	schedule := Schedule{}
	if d.HasArg("at") {
		schedule = s.plan.Schedule(s.timeArg(d))
	}
	for i, w := range s.plan.Waves {
		fmt.Fprintf(&out, "%s %s: %v; %d regions, %d clusters; soak %s", w.Sector, w.Name, w.Targets, w.Regions,
			w.Clusters, time.Duration(w.Soak))
		if w.Approval {
			fmt.Fprint(&out, "; approval")
		}
		if i < len(schedule.Waves) {
			period := schedule.Waves[i]
			expected, longest := s.plan.durations(w)
			fmt.Fprintf(&out, "; %s to %s (%s), at the latest %s (%s)", period.Begin.UTC().Format("Mon 15:04"),
				period.End.UTC().Format("Mon 15:04"), time.Duration(expected), period.Latest.UTC().Format("Mon 15:04"),
				time.Duration(longest))
		}
		fmt.Fprintln(&out)
	}
	if d.HasArg("at") {
		fmt.Fprintf(&out, "expected %s, longest %s\n", time.Duration(schedule.Expected), time.Duration(schedule.Longest))
	}
	return out.String()
}

func (s *scenario) step(d *datadriven.TestData) string {
	after, repeat := "", 1
	d.ScanArgs(s.t, "after", &after)
	if d.HasArg("repeat") {
		d.ScanArgs(s.t, "repeat", &repeat)
	}
	pause, err := time.ParseDuration(after)
	if err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	var out strings.Builder
	for range repeat {
		s.now = s.now.Add(pause)
		seen := Observation{}
		for target := range s.state.Targets {
			seen[target] = Health{Verdict: Passing}
		}
		for _, arg := range d.CmdArgs {
			for _, target := range arg.Vals {
				switch arg.Key {
				case "fail":
					seen[Target(target)] = Health{Failing, "gate api answered 500"}
				case "unreadable":
					seen[Target(target)] = Health{Unreadable, "gate api: connection refused"}
				}
			}
		}
		var effects []Effect
		s.state, effects = s.plan.Step(s.state, seen, s.now)
		out.WriteString(showEffects(effects))
	}
	return out.String() + s.show(nil)
}

func (s *scenario) command(do func() (State, []Effect, error)) string {
	state, effects, err := do()
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	s.state = state
	return s.show(effects)
}

func showEffects(effects []Effect) string {
	var out strings.Builder
	for _, e := range effects {
		fmt.Fprintf(&out, "effect: %s %v %q\n", e.Kind, e.Targets, e.Reason)
	}
	return out.String()
}

func (s *scenario) show(effects []Effect) string {
	radius := s.state.Radius(s.fleet)
	text := fmt.Sprintf("%s, wave %d, %d in flight, soaked %s, changed %d regions and %d clusters", s.state.Phase,
		s.state.Wave, s.state.InFlight(), time.Duration(s.state.Soaked), radius.Regions, radius.Clusters)
	if s.state.Reason != "" {
		text += ": " + s.state.Reason
	}
	return showEffects(effects) + text + "\n"
}
