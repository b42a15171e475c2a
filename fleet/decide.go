package fleet

import (
	"maps"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
)

// Amounts are amounts of named resources.
type Amounts = api.Amounts

// Demand is what a cluster wants of the management cluster that hosts it.
type Demand struct {
	Named    string            `json:"named,omitempty"`    // this one and no other
	Selector map[string]string `json:"selector,omitempty"` // labels that it must have
	Version  string            `json:"version,omitempty"`  // of Kubernetes, which it must be able to run
	Amounts  Amounts           `json:"amounts"`
}

// ManagementCluster is one as placement sees it.
type ManagementCluster struct {
	ID, Name string
	State    api.ManagementClusterState
	Heard    time.Time // when its agent was last heard, if it ever was
	Labels   map[string]string
	Versions []string // none: it does not say
	Capacity Amounts  // what it does not name is not limited
	Reserved Amounts
	// Placements is how many clusters are placed there.
	Placements int
	// Broken is why what it declares cannot be used, "" for nothing.
	Broken string
}

// Decide finds the management cluster that fits a demand and is left with the
// largest free share of its scarcest resource, of equals the first by name. It
// returns its index in fleet, or -1, and the explanation.
func Decide(d Demand, fleet []ManagementCluster) (chosen int, e Explanation) {
	return choose(d, fleet), explain(d, fleet)
}

func choose(d Demand, fleet []ManagementCluster) int {
	chosen, best := -1, int64(0)
	for i := range fleet {
		m := &fleet[i]
		if !m.fits(d) {
			continue
		}
		score := m.score(d)
		if chosen < 0 || score > best || score == best && m.Name < fleet[chosen].Name {
			chosen, best = i, score
		}
	}
	return chosen
}

// fits says that no objection speaks against it.
func (m *ManagementCluster) fits(d Demand) bool {
	return m.Broken == "" && m.State == api.Ready && m.admits(d) && m.holds(d.Amounts)
}

// admits says that the demand allows it.
func (m *ManagementCluster) admits(d Demand) bool { return m.isAskedFor(d) && m.runs(d) }

func (m *ManagementCluster) isAskedFor(d Demand) bool {
	if d.Named != "" && d.Named != m.Name {
		return false
	}
	for k, v := range d.Selector {
		if have, ok := m.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func (m *ManagementCluster) runs(d Demand) bool {
	return d.Version == "" || len(m.Versions) == 0 || slices.Contains(m.Versions, d.Version)
}

// holds says that it has so much free.
func (m *ManagementCluster) holds(wanted Amounts) bool {
	for name, n := range wanted {
		if capacity, limited := m.Capacity[name]; limited && n > capacity-m.Reserved[name] {
			return false
		}
	}
	return true
}

const whole = 1_000_000

// score is the free share, in millionths, that the demand would leave of its
// scarcest resource. It is for one that fits.
func (m *ManagementCluster) score(d Demand) int64 {
	least := int64(whole)
	for name, capacity := range m.Capacity {
		if capacity <= 0 {
			continue // nobody wants any, or it would not fit
		}
		least = min(least, share(capacity-m.Reserved[name]-d.Amounts[name], capacity))
	}
	return max(0, least)
}

// share is part/all in millionths, without overflow for any capacity there is.
func share(part, all int64) int64 {
	for all > maxAmount {
		part, all = part/2, all/2
	}
	return part * whole / all
}

// maxAmount is more than any management cluster has of anything, in any unit
// that is sane, and far from where its product with whole ends.
const maxAmount = 1 << 40

// add changes amounts by others, times so often. What comes to nothing goes.
func (m *ManagementCluster) add(amounts Amounts, times int64) {
	m.Reserved = plus(m.Reserved, amounts, times)
	m.Placements += int(times)
}

func plus(a, b Amounts, times int64) Amounts {
	sum := maps.Clone(a)
	if sum == nil {
		sum = Amounts{}
	}
	for name, n := range b {
		if sum[name] += n * times; sum[name] == 0 {
			delete(sum, name)
		}
	}
	return sum
}
