package fleet

import (
	"maps"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/api/work"
	"atoll.dev/cluster"
)

// Amounts are amounts of named resources.
type Amounts = api.Amounts

// Demand has a cluster's requirements for the management cluster that hosts it.
type Demand struct {
	Named    cluster.ManagementCluster `json:"named,omitempty"`    // the only management cluster that fits
	Selector map[string]string         `json:"selector,omitempty"` // required labels
	Version  string                    `json:"version,omitempty"`  // required version of Kubernetes
	Amounts  Amounts                   `json:"amounts"`
}

// ManagementCluster is a management cluster with the properties that placement reads.
type ManagementCluster struct {
	ID       cluster.ManagementClusterID
	Name     cluster.ManagementCluster
	State    api.ManagementClusterState
	LastSeen time.Time // when Maestro last received a message of its agent; zero: never
	Labels   map[string]string
	Versions []string // none: unknown, any version fits
	Capacity Amounts  // resources that it does not name are unlimited
	Reserved Amounts
	// Placements is the number of clusters placed there.
	Placements int
	// Unusable is the reason why nothing can be placed there, such as an error in its spec; "": there is none.
	Unusable string
	// Hosting is what hosting there last reported; nil when it is not known. It is for operators: no decision reads it.
	Hosting *work.HostingReport
}

// Decide chooses, among the management clusters that fit a demand, the one whose scarcest resource keeps the largest
// free share; of equal ones, the first by name. It returns its index in fleet, or -1 if none fits, and
// the explanation. The result does not depend on the order of fleet.
func Decide(d Demand, fleet []ManagementCluster) (chosen int, e Explanation) {
	return choose(d, fleet), explain(d, fleet)
}

// choose is Decide without the explanation.
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

// fits reports whether the cluster fits. It is true exactly if objections returns none.
func (m *ManagementCluster) fits(d Demand) bool {
	return m.Unusable == "" && m.State == api.Ready && m.admits(d) && m.hasFree(d.Amounts)
}

// admits reports whether the demand allows this management cluster, whatever its room.
func (m *ManagementCluster) admits(d Demand) bool {
	return m.matchesSelection(d) && m.supportsVersion(d)
}

// matchesSelection reports whether the demand's name and selector match.
func (m *ManagementCluster) matchesSelection(d Demand) bool {
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

// supportsVersion reports whether the management cluster can run the demanded version of Kubernetes.
func (m *ManagementCluster) supportsVersion(d Demand) bool {
	return d.Version == "" || len(m.Versions) == 0 || slices.Contains(m.Versions, d.Version)
}

// hasFree reports whether the wanted amounts are free. Resources without a capacity are unlimited.
func (m *ManagementCluster) hasFree(wanted Amounts) bool {
	for name, n := range wanted {
		if capacity, limited := m.Capacity[name]; limited && n > capacity-m.Reserved[name] {
			return false
		}
	}
	return true
}

// millionths is a share of 1 in the unit of scores.
const millionths = 1_000_000

// score returns the free share, in millionths, of the management cluster's scarcest resource when the demand is placed
// there. The management cluster must fit the demand.
func (m *ManagementCluster) score(d Demand) int64 {
	least := int64(millionths)
	for name, capacity := range m.Capacity {
		if capacity <= 0 {
			continue // the demand fits, so it needs none of this resource
		}
		least = min(least, share(capacity-m.Reserved[name]-d.Amounts[name], capacity))
	}
	return max(0, least)
}

// share returns part/all in millionths, without overflow.
func share(part, all int64) int64 {
	for all > maxAmount {
		part, all = part/2, all/2
	}
	return part * millionths / all
}

// maxAmount exceeds the amounts of real management clusters; its product with millionths does not overflow.
const maxAmount = 1 << 40

// add adds the amounts, multiplied by times, to the reservations, and times to the number of placements. times may
// be negative.
func (m *ManagementCluster) add(amounts Amounts, times int64) {
	m.Reserved = plus(m.Reserved, amounts, times)
	m.Placements += int(times)
}

// plus returns a plus times b, without resources whose sum is 0.
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
