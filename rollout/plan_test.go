package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// bigFleet has so many regions in three sectors, with ten management clusters each.
func bigFleet(regions int) Fleet {
	f := Fleet{Sectors: []string{"canary", "early", "main"}}
	for i := range regions {
		r := Region{Name: fmt.Sprintf("r%05d", i), Sector: f.Sectors[min(i*10/regions, 2)]}
		for j := range 10 {
			r.Clusters = append(r.Clusters, fmt.Sprintf("mc%02d", j))
		}
		f.Regions = append(f.Regions, r)
	}
	return f
}

func bigRollout() Rollout {
	return Rollout{Canaries: []string{"r00000/mc00", "r09999"}, Shares: []int{1, 10, 50}, MaxInFlight: 50,
		Soak: Soak{Wave: time.Hour, Sector: day}, Expected: 10 * time.Minute, Settle: time.Minute, Deadline: time.Hour,
		Freeze: []Freeze{{From: "Fri 16:00", To: "Mon 08:00", Zone: "Europe/Berlin"}}, OnFailure: StopOnFailure}
}

// TestAPlanForTenThousandRegionsCostsLittle bounds the work by allocations, which do not depend on the machine.
func TestAPlanForTenThousandRegionsCostsLittle(t *testing.T) {
	fleet, r := bigFleet(10_000), bigRollout()
	allocations := testing.AllocsPerRun(1, func() {
		p, err := newPlan(r, fleet)
		if err != nil {
			t.Fatal(err)
		}
		p.Schedule(time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC))
		if p.Regions != 10_000 || p.Clusters != 100_000 {
			t.Fatalf("%d regions, %d clusters", p.Regions, p.Clusters)
		}
	})
	if allocations > 50_000 {
		t.Errorf("%.0f allocations for 10,000 regions", allocations)
	}
}

func BenchmarkPlanOfTenThousandRegions(b *testing.B) {
	fleet, r := bigFleet(10_000), bigRollout()
	for b.Loop() {
		p, err := newPlan(r, fleet)
		if err != nil {
			b.Fatal(err)
		}
		p.Schedule(time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC))
	}
}

func BenchmarkStepWithTenThousandChangedRegions(b *testing.B) {
	fleet, r := bigFleet(10_000), bigRollout()
	p, err := newPlan(r, fleet)
	if err != nil {
		b.Fatal(err)
	}
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	s, seen := newState(now), Observation{}
	for _, target := range slices.Concat(p.Waves[0].Targets, p.Waves[len(p.Waves)-1].Targets) {
		s.Targets[target], seen[target] = TargetState{Changed: now, Healthy: now}, Health{Verdict: Passing}
	}
	for b.Loop() {
		p.Step(s, seen, now)
	}
}
