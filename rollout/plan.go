package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/gitops"
)

// Target is the object that one step of a rollout changes: REGION, a region with all its management clusters, or
// REGION/CLUSTER, one management cluster.
type Target string

// Region returns the name of the target's region.
func (t Target) Region() string {
	region, _, _ := strings.Cut(string(t), "/")
	return region
}

// Cluster returns the name of the management cluster, and "" for a region.
func (t Target) Cluster() string {
	_, cluster, _ := strings.Cut(string(t), "/")
	return cluster
}

// Fleet is the part of the configuration that a plan depends on: one environment.
type Fleet struct {
	Sectors []string // in the order in which changes reach them
	Regions []Region // by name
}

// Region is a region of a Fleet.
type Region struct {
	Name     string
	Sector   string
	Clusters []string
}

// fleetOf returns the Fleet of an environment of the configuration.
func fleetOf(e gitops.Environment) Fleet {
	f := Fleet{}
	for _, s := range e.Sectors {
		f.Sectors = append(f.Sectors, string(s))
	}
	for _, r := range e.Regions {
		region := Region{Name: string(r.Name), Sector: string(r.Sector)}
		for _, c := range r.Clusters {
			region.Clusters = append(region.Clusters, string(c.Name))
		}
		f.Regions = append(f.Regions, region)
	}
	return f
}

// Plan is the course of a rollout. It does not change while the rollout runs.
type Plan struct {
	Waves    []Wave `json:"waves"`
	Regions  int    `json:"regions"`
	Clusters int    `json:"clusters"`
	rollout  Rollout
	freezes  freezes
}

// Wave is a set of targets that have the change before the next wave begins.
type Wave struct {
	Sector   string   `json:"sector"`
	Name     string   `json:"name"` // canaries, 10%, rest
	Targets  []Target `json:"targets"`
	Regions  int      `json:"regions"`
	Clusters int      `json:"clusters"` // that the targets have together
	Approval bool     `json:"approval,omitempty"`
	Soak     Duration `json:"soak"` // after the wave
}

// Duration is a time.Duration that JSON shows as 1h30m0s.
type Duration time.Duration

// MarshalText returns the duration as 1h30m0s.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration such as 1h30m.
func (d *Duration) UnmarshalText(text []byte) error {
	value, err := time.ParseDuration(string(text))
	*d = Duration(value)
	return err
}

// newPlan returns the plan of a rollout. It depends on the file and the fleet only. The errors name the file and line
// of each sector and canary that the fleet does not have.
func newPlan(r Rollout, fleet Fleet) (Plan, error) {
	p := Plan{rollout: r, freezes: r.freezes()}
	if err := r.checkNames(fleet); err != nil {
		return Plan{}, err
	}
	canaries := map[string][]Target{} // by region
	for _, name := range r.Canaries {
		t := Target(name)
		canaries[t.Region()] = append(canaries[t.Region()], t)
	}
	bySector := map[string][]Region{}
	for _, region := range fleet.Regions {
		bySector[region.Sector] = append(bySector[region.Sector], region)
	}
	for _, sector := range fleet.Sectors {
		if len(r.Sectors) > 0 && !slices.Contains(r.Sectors, sector) {
			continue
		}
		waves := r.wavesOf(sector, bySector[sector], canaries)
		if len(waves) == 0 {
			continue
		}
		waves[0].Approval = slices.Contains(r.Approval, sector)
		waves[len(waves)-1].Soak = Duration(r.Soak.Sector)
		p.Waves = append(p.Waves, waves...)
		for _, region := range bySector[sector] {
			p.Regions, p.Clusters = p.Regions+1, p.Clusters+len(region.Clusters)
		}
	}
	if len(p.Waves) == 0 {
		return Plan{}, r.errorf("environment", "its sectors have no regions; nothing would change")
	}
	return p, nil
}

// wavesOf returns the waves of one sector: canaries, shares, rest.
func (r Rollout) wavesOf(sector string, regions []Region, canaries map[string][]Target) (waves []Wave) {
	add := func(name string, targets []Target, regions, clusters int) {
		if len(targets) > 0 {
			waves = append(waves, Wave{Sector: sector, Name: name, Targets: targets, Regions: regions, Clusters: clusters,
				Soak: Duration(r.Soak.Wave)})
		}
	}
	var first []Target
	firstRegions, firstClusters := 0, 0
	var others []Region
	for _, region := range regions {
		isCanary := false
		for _, t := range canaries[region.Name] {
			first = append(first, t)
			if t.Cluster() == "" {
				isCanary = true
			} else {
				firstClusters++
			}
		}
		if isCanary {
			firstRegions, firstClusters = firstRegions+1, firstClusters+len(region.Clusters)
		} else {
			others = append(others, region)
		}
	}
	slices.SortFunc(first, func(a, b Target) int { // clusters before whole regions: fewer customers first
		if inRegion := strings.Count(string(b), "/") - strings.Count(string(a), "/"); inRegion != 0 {
			return inRegion
		}
		return strings.Compare(string(a), string(b))
	})
	add("canaries", first, firstRegions, firstClusters)
	changed := firstRegions
	for _, share := range append(slices.Clone(r.Shares), 100) {
		upTo := (len(regions)*share + 99) / 100 // rounded up
		n := min(max(upTo-changed, 0), len(others))
		targets, clusters := make([]Target, n), 0
		for i, region := range others[:n] {
			targets[i] = Target(region.Name)
			clusters += len(region.Clusters)
		}
		name := "rest"
		if share < 100 {
			name = fmt.Sprintf("%d%%", share)
		}
		add(name, targets, n, clusters)
		others, changed = others[n:], changed+n
	}
	return waves
}

// checkNames refuses sectors and canaries that the fleet does not have.
func (r Rollout) checkNames(fleet Fleet) error {
	regions := map[string]Region{}
	for _, region := range fleet.Regions {
		regions[region.Name] = region
	}
	for path, names := range map[string][]string{"sectors": r.Sectors, "approval": r.Approval} {
		for i, name := range names {
			if !slices.Contains(fleet.Sectors, name) {
				return r.errorf(fmt.Sprintf("%s[%d]", path, i), "the environment %s has no sector %s; it has %s",
					r.Environment, name, strings.Join(fleet.Sectors, ", "))
			}
		}
	}
	for i, name := range r.Canaries {
		path := fmt.Sprintf("canaries[%d]", i)
		region, found := regions[Target(name).Region()]
		switch cluster := Target(name).Cluster(); {
		case !found:
			return r.errorf(path, "the environment %s has no region %s", r.Environment, Target(name).Region())
		case len(r.Sectors) > 0 && !slices.Contains(r.Sectors, region.Sector):
			return r.errorf(path, "the region %s is in the sector %s, which the rollout does not reach", region.Name,
				region.Sector)
		case cluster != "" && !slices.Contains(region.Clusters, cluster):
			return r.errorf(path, "the region %s has no management cluster %s; it has %s", region.Name, cluster,
				strings.Join(region.Clusters, ", "))
		}
	}
	return nil
}

// Schedule is when the waves of a plan begin and end, if every region needs as long as expected and each approval comes
// at once.
type Schedule struct {
	Waves    []Period `json:"waves"`
	Expected Duration `json:"expected"` // from the beginning to the end of the last wave
	Longest  Duration `json:"longest"`  // when each region needs its whole deadline
	Frozen   bool     `json:"frozen,omitempty"`
}

// Period is when a wave begins and ends; its soak follows.
type Period struct {
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
	// Latest is when the wave ends if each region of this wave and of the waves before needs its whole deadline.
	Latest time.Time `json:"latest"`
}

// Schedule returns when the waves of the plan begin and end if the rollout begins at start. Frozen is set when a wave
// never begins, because freezes have no end. Latest and Longest do not count the time of waiting for approvals, of
// pauses, and of gates that cannot be read during a soak.
func (p Plan) Schedule(start time.Time) Schedule {
	s := Schedule{}
	end, expected, frozen := p.simulate(start, p.rollout.expected())
	latestEnd, longest, _ := p.simulate(start, p.rollout.Deadline)
	for i := range min(len(expected), len(longest)) {
		expected[i].Latest = longest[i].End
	}
	s.Waves, s.Frozen = expected, frozen
	s.Expected, s.Longest = Duration(end.Sub(start)), Duration(latestEnd.Sub(start))
	return s
}

// durations returns how long a wave is expected to take, and how long it takes when each region needs its whole
// deadline: without its soak, and without time in freezes.
func (p Plan) durations(w Wave) (expected, longest Duration) {
	batches := (len(w.Targets) + p.rollout.MaxInFlight - 1) / p.rollout.MaxInFlight
	return Duration(batches) * Duration(p.rollout.expected()), Duration(batches) * Duration(p.rollout.Deadline)
}

// expected returns how long a region usually needs. It is never healthy before settle.
func (r Rollout) expected() time.Duration { return max(r.Expected, r.Settle) }

// simulate returns when each wave begins and ends if the rollout begins at start and every batch of MaxInFlight targets
// takes the duration each. frozen is true when a freeze has no end.
func (p Plan) simulate(start time.Time, each time.Duration) (end time.Time, waves []Period, frozen bool) {
	t := start
	for i, w := range p.Waves {
		var period Period
		for done := 0; done < len(w.Targets); done += p.rollout.MaxInFlight {
			begin, ok := p.freezes.firstInstantOutside(t)
			if !ok {
				return t, waves, true
			}
			if done == 0 {
				period.Begin = begin
			}
			t = begin.Add(each)
		}
		period.End = t
		waves = append(waves, period)
		if i < len(p.Waves)-1 || w.Soak > 0 {
			t = t.Add(time.Duration(w.Soak))
		}
	}
	return t, waves, false
}
