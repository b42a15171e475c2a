package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

var names = []string{"planes", "memory_mib", "eggs"}

func amounts(least, most int64) *rapid.Generator[Amounts] {
	return rapid.MapOfN(rapid.SampledFrom(names), rapid.Int64Range(least, most), 0, 3)
}

func someDemand() *rapid.Generator[Demand] {
	return rapid.Custom(func(t *rapid.T) Demand {
		d := Demand{Amounts: amounts(0, 5).Draw(t, "amounts")}
		if rapid.IntRange(0, 5).Draw(t, "named") == 0 {
			d.Named = cluster.ManagementCluster(fmt.Sprintf("m%d", rapid.IntRange(0, 5).Draw(t, "name")))
		}
		if rapid.Bool().Draw(t, "selects") {
			d.Selector = map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")}
		}
		if rapid.Bool().Draw(t, "versioned") {
			d.Version = rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version")
		}
		return d
	})
}

func someFleet() *rapid.Generator[[]ManagementCluster] {
	return rapid.Custom(func(t *rapid.T) []ManagementCluster {
		fleet := make([]ManagementCluster, rapid.IntRange(0, 6).Draw(t, "clusters"))
		for i := range fleet {
			fleet[i] = ManagementCluster{
				ID: cluster.ManagementClusterID(fmt.Sprint(i)), Name: cluster.ManagementCluster(fmt.Sprintf("m%d", i)),
				Capacity: amounts(0, 12).Draw(
					t, "capacity"), Reserved: Amounts{},
				State: rapid.SampledFrom([]api.ManagementClusterState{api.Ready, api.Ready, api.Ready, api.Cordoned,
					api.Draining, api.Lost, api.Unheard}).Draw(t, "state"),
				Labels:   map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "label")},
				Versions: rapid.SliceOfN(rapid.SampledFrom([]string{"1", "2"}), 0, 2).Draw(t, "versions"),
			}
		}
		return fleet
	})
}

// Random decisions in any order exceed no capacity, and choose only management clusters that fit the demand.
func TestNoPlacementOverfills(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := someFleet().Draw(t, "fleet")
		for range rapid.IntRange(0, 40).Draw(t, "placements") {
			d := someDemand().Draw(t, "demand")
			i, e := Decide(d, fleet)
			for _, c := range e.Candidates {
				if c.Fits == (len(c.Reasons) > 0) {
					t.Fatalf("%s fits: %v, and the reasons against it are %q", c.Name, c.Fits, c.Reasons)
				}
			}
			if fits := slices.ContainsFunc(e.Candidates, func(c api.Candidate) bool { return c.Fits }); fits != (i >= 0) {
				t.Fatalf("chosen %d of %+v", i, e.Candidates)
			}
			if i >= 0 && cluster.ManagementCluster(e.Candidates[0].Name) != fleet[i].Name {
				t.Fatalf("%s is chosen, and the best is %s", fleet[i].Name, e.Candidates[0].Name)
			}
			if i < 0 {
				continue
			}
			m := &fleet[i]
			m.add(d.Amounts, 1)
			for name, n := range m.Reserved {
				if capacity, limited := m.Capacity[name]; limited && n > capacity {
					t.Fatalf("%s of %s: %d of %d are reserved", name, m.Name, n, capacity)
				}
			}
			if m.State != api.Ready || d.Named != "" && d.Named != m.Name || d.Selector != nil &&
				d.Selector["zone"] != m.Labels["zone"] ||
				d.Version != "" && len(m.Versions) > 0 && !slices.Contains(m.Versions, d.Version) {
				t.Fatalf("%+v was placed on %+v", d, *m)
			}
		}
	})
}

// A decision does not depend on the order of the management clusters, and the chosen one has the best score.
func TestADecisionIsTheSameForTheSameFleet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet, d := someFleet().Draw(t, "fleet"), someDemand().Draw(t, "demand")
		i, candidates := Decide(d, fleet)
		shuffled := rapid.Permutation(fleet).Draw(t, "shuffled")
		j, again := Decide(d, shuffled)
		if diff := cmp.Diff(candidates, again); diff != "" || (i < 0) != (j < 0) || i >= 0 &&
			fleet[i].ID != shuffled[j].ID {
			t.Fatalf("%d and %d are chosen, and %s", i, j, diff)
		}
		for _, c := range candidates.Candidates {
			if c.Fits && (c.Score > fleet[i].score(d) || c.Score == fleet[i].score(d) &&
				cluster.ManagementCluster(c.Name) < fleet[i].Name) {
				t.Fatalf("%s was chosen with score %d, and %s has score %d", fleet[i].Name, fleet[i].score(d), c.Name, c.Score)
			}
		}
	})
}

// If a demand fits, it still fits after any limited capacity grows.
func TestMoreCapacityMakesNoPlacementImpossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet, d := someFleet().Draw(t, "fleet"), someDemand().Draw(t, "demand")
		for i := range fleet {
			for name, n := range fleet[i].Capacity {
				if n > 0 {
					fleet[i].Reserved[name] = rapid.Int64Range(0, n).Draw(t, "reserved")
				}
			}
		}
		before, _ := Decide(d, fleet)
		for i := range fleet {
			fleet[i].Capacity = maps.Clone(fleet[i].Capacity)
			for name := range fleet[i].Capacity {
				fleet[i].Capacity[name] += rapid.Int64Range(0, 3).Draw(t, "more")
			}
		}
		if after, candidates := Decide(d, fleet); before >= 0 && after < 0 {
			t.Fatalf("with more capacity nothing fits: %+v", candidates)
		}
	})
}

func TestTheReasonsAgainstEach(t *testing.T) {
	lastSeen := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	ready := ManagementCluster{State: api.Ready, Labels: map[string]string{"zone": "a"}, Versions: []string{"1.36.3"},
		Capacity: Amounts{"planes": 2, "memory_mib": 1000}}
	with := func(name string, change func(*ManagementCluster)) ManagementCluster {
		m := ready
		m.Name = cluster.ManagementCluster(name)
		change(&m)
		return m
	}
	fleet := []ManagementCluster{
		with("b", func(m *ManagementCluster) { m.Reserved = Amounts{"planes": 1, "memory_mib": 350} }),
		with("a", func(m *ManagementCluster) { m.Reserved = Amounts{"planes": 2, "memory_mib": 700} }),
		with("c", func(m *ManagementCluster) { m.State = api.Cordoned }),
		with("d", func(m *ManagementCluster) { m.State, m.LastSeen = api.Lost, lastSeen }),
		with("e", func(m *ManagementCluster) { m.State, m.Labels = api.Unheard, map[string]string{"zone": "b"} }),
		with("f", func(m *ManagementCluster) { m.Labels, m.Versions = nil, []string{"1.35.0"} }),
		with("g", func(m *ManagementCluster) { m.Unusable = "its spec cannot be read: x" }),
	}
	d := Demand{Selector: map[string]string{"zone": "a"}, Version: "1.36.3", Amounts: Amounts{"planes": 1,
		"memory_mib": 350}}
	i, got := Decide(d, fleet)
	want := Explanation{
		Considered: 7,
		Candidates: []api.Candidate{
			{Name: "b", Fits: true},
			{Name: "c", Reasons: []string{"cordoned"}},
			{Name: "d", Reasons: []string{"lost: the last event of its agent was at 2026-11-21T10:00:00Z"}},
			{Name: "g", Reasons: []string{"its spec cannot be read: x"}},
			{Name: "a", Reasons: []string{"memory_mib: 300 of 1000 free, 350 needed", "planes: 0 of 2 free, 1 needed"}},
		},
		Objections: []api.Objection{
			{Reason: "cordoned", Count: 1}, {Reason: "it cannot run the version", Count: 1},
			{Reason: "it has another value of label zone", Count: 1},
			{Reason: "it has no label zone", Count: 1}, {Reason: "its agent has never connected", Count: 1},
			{Reason: "its declaration cannot be used", Count: 1},
			{Reason: "lost", Count: 1}, {Reason: "not enough free of memory_mib", Count: 1},
			{Reason: "not enough free of planes", Count: 1},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || i != 0 {
		t.Fatalf("%d, %s", i, diff)
	}
	d.Named = "c"
	if got := operatorReason(
		d,
		Explanation{Considered: 2, Candidates: []api.Candidate{{Name: "c", Reasons: []string{"y"}},
			{Name: "a", Reasons: []string{"x"}}}},
	); got != "c: y" {
		t.Errorf("the sentence is %q", got)
	}
}

// The reason for a cluster's owner names no management cluster, label, version or amount of the region.
func TestTheOwnersReasonHasNoInventory(t *testing.T) {
	one := Amounts{"planes": 1}
	ready := ManagementCluster{Name: "edge-7", State: api.Ready, Labels: map[string]string{"zone": "north"},
		Versions: []string{"9.9.9"}, Capacity: Amounts{"planes": 4711}, Reserved: Amounts{"planes": 4711}}
	with := func(change func(*ManagementCluster)) []ManagementCluster {
		m := ready
		change(&m)
		return []ManagementCluster{m}
	}
	same := func(*ManagementCluster) {}
	for _, c := range []struct {
		fleet []ManagementCluster
		d     Demand
		want  string
	}{
		{nil, Demand{Amounts: one}, "the region takes no new clusters at present"},
		{with(func(m *ManagementCluster) { m.State = api.Cordoned }), Demand{Amounts: one},
			"the region takes no new clusters at present"},
		{with(func(m *ManagementCluster) { m.Unusable = "x" }), Demand{Amounts: one},
			"the region takes no new clusters at present"},
		{with(same), Demand{Amounts: one}, "the region has no room for the cluster at present"},
		{with(same), Demand{Amounts: one, Named: "edge-8"},
			"the management cluster that the cluster asks for takes no clusters at present"},
		{with(same), Demand{Amounts: one, Selector: map[string]string{"zone": "south"}},
			"no place has the labels that the cluster asks for"},
		{with(same), Demand{Amounts: one, Version: "1.36.3"},
			"no place that the cluster may have runs Kubernetes 1.36.3 at present"},
	} {
		if got := publicReason(c.d, c.fleet); got != c.want {
			t.Errorf("the reason for %+v is %q, want %q", c.d, got, c.want)
		}
	}
}

// The size of an explanation does not grow with the number of management clusters.
func TestAnExplanationIsBounded(t *testing.T) {
	fleet := make([]ManagementCluster, 1000)
	for i := range fleet {
		fleet[i] = ManagementCluster{Name: cluster.ManagementCluster(fmt.Sprintf("m%04d", i)), State: api.Ready,
			Capacity: Amounts{"planes": 10},
			Reserved: Amounts{"planes": 10}}
		if i%3 == 0 {
			fleet[i].State = api.Cordoned
		}
	}
	i, e := Decide(Demand{Amounts: Amounts{"planes": 1}}, fleet)
	text, err := json.Marshal(e)
	if err != nil || i >= 0 || len(e.Candidates) != maxCandidates || len(text) > 1000 {
		t.Fatalf("%d, %d bytes: %s, %v", i, len(text), text, err)
	}
	if diff := cmp.Diff([]api.Objection{{Reason: "not enough free of planes", Count: 1000},
		{Reason: "cordoned", Count: 334}}, e.Objections); diff != "" {
		t.Error(diff)
	}
}

func TestTheDemandOfASpec(t *testing.T) {
	for spec, want := range map[string]Demand{
		`{}`: {},
		`{"placement":{"managementCluster":"m","selector":{"a":"b"}},"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.3"}}}`: {Named: "m", Selector: map[string]string{"a": "b"}, Version: "1.36.3"},
		`{"placement":"mc01","hostedCluster":{"release":{"image":"quay.io:443/x/y:4.20@sha256:00"}}}`:                                   {Named: "mc01", Version: "4.20"},
		`{"placement":null,"hostedCluster":{"release":{"image":"quay.io:443/x"}}}`:                                                      {},
		`{"placement":7,"hostedCluster":[]}`: {},
	} {
		if diff := cmp.Diff(want, demandOf(json.RawMessage(spec), nil)); diff != "" {
			t.Errorf("%s: %s", spec, diff)
		}
	}
}

// demandOf panics for no spec, and returns no version with a part of a registry or a digest.
func FuzzDemand(f *testing.F) {
	f.Add(
		`{"placement":{"managementCluster":"m","selector":{"a":"b"}},"hostedCluster":{"release":{"image":"quay.io:443/x/y:4.20@sha256:00"}}}`,
	)
	f.Add(`{"placement":"m","hostedCluster":{"release":{"image":":"}}}`)
	f.Add(`{"placement":[],"hostedCluster":{"release":{"image":"a@b:c/d"}}}`)
	f.Fuzz(func(t *testing.T, spec string) {
		if d := demandOf(json.RawMessage(spec), nil); strings.ContainsAny(d.Version, "/:@") {
			t.Errorf("the version of %s is %q", spec, d.Version)
		}
	})
}
