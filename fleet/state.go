package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// The store's kinds that fleet reads: CLM's entities of these names, and its
// requests for work.
const (
	kindCluster store.Kind = "Cluster"
	kindMC      store.Kind = "ManagementCluster"
	kindRequest store.Kind = "Request"
)

// presenceAdapter is the adapter that reports whether a management cluster's agent is connected.
const presenceAdapter = string(cluster.AdapterMaestro)

// conditionAvailable is True in that report while the agent is connected.
const conditionAvailable = string(cluster.ConditionAvailable)

// silence is how long the report on an agent may stay unchanged before the agent counts as lost. Maestro
// repeats the report every minute while it receives messages of the agent, and reports a loss at once;
// silence covers the case that Maestro itself is away. This process measures it by its own clock, from
// when it saw the report move.
const silence = 210 * time.Second

// mcSpec is the spec of a management cluster.
type mcSpec struct {
	State    api.ManagementClusterState `json:"state"`
	Capacity Amounts                    `json:"capacity"`
	Versions []string                   `json:"versions"`
}

// presence has the reports on its agent. CLM keeps reports in the status of its documents, in wire form.
type presence struct {
	Reports []struct {
		Adapter    string    `json:"adapter"`
		ObservedAt time.Time `json:"last_report_time"`
		Data       struct {
			LastSeen time.Time `json:"last_seen"`
		} `json:"data"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"reports"`
}

// reading is a management cluster's document, decoded once: each decision reads all of them, and few change
// between two decisions.
type reading struct {
	doc      store.Document
	m        ManagementCluster // without its state, which depends on the time
	declared api.ManagementClusterState
	seen     presence
}

func read(d store.Document) reading {
	r := reading{doc: d, m: ManagementCluster{ID: cluster.ManagementClusterID(d.ID),
		Name: cluster.ManagementCluster(d.Name)}}
	m := &r.m
	var wire clm.Resource
	var spec mcSpec
	if err := json.Unmarshal(d.Wire, &wire); err != nil {
		m.Broken = fmt.Sprintf("it cannot be read: %v", err)
	} else if err := json.Unmarshal(wire.Spec, &spec); err != nil {
		m.Broken = fmt.Sprintf("its spec cannot be read: %v", err)
	}
	m.Labels, m.Versions, m.Capacity, r.declared = wire.Labels, spec.Versions, spec.Capacity, spec.State
	if d.DeletedAt != nil {
		m.Broken = "it is being deleted"
	}
	for name, n := range m.Capacity {
		if n > maxAmount {
			m.Broken = fmt.Sprintf("its capacity of %s is beyond belief", name)
		}
	}
	switch spec.State {
	case "", api.Ready, api.Cordoned, api.Draining:
	default:
		m.Broken = fmt.Sprintf("its state %s is none", spec.State)
	}
	if err := json.Unmarshal(d.Status, &r.seen); err != nil {
		m.Broken = fmt.Sprintf("its status cannot be read: %v", err)
	}
	return r
}

// at returns the management cluster with its state at now, when its report moved last at moved. The caller
// sets its reservations and changes nothing else, because the other members are shared.
func (r reading) at(now, moved time.Time) ManagementCluster {
	m := r.m
	m.State, m.Heard = stateOf(r.declared, r.seen, now.Sub(moved))
	return m
}

// available reports whether its agent is reported as connected.
func (r reading) available() bool {
	state, _ := stateOf(api.Ready, r.seen, 0)
	return state == api.Ready
}

// reportTime returns the time of the report on its agent; zero without one.
func (r reading) reportTime() time.Time {
	for _, report := range r.seen.Reports {
		if report.Adapter == presenceAdapter {
			return report.ObservedAt
		}
	}
	return time.Time{}
}

// stateOf returns the declared state, unless its agent is lost. age is the time since its last report.
func stateOf(declared api.ManagementClusterState, seen presence, age time.Duration) (state api.ManagementClusterState,
	heard time.Time) {
	state = api.Unheard
	for _, r := range seen.Reports {
		if r.Adapter != presenceAdapter {
			continue
		}
		heard = r.ObservedAt
		if !r.Data.LastSeen.IsZero() {
			heard = r.Data.LastSeen
		}
		state = api.Lost
		for _, c := range r.Conditions {
			if c.Type == conditionAvailable && c.Status == "True" && age <= silence {
				return cmp.Or(declared, api.Ready), r.ObservedAt
			}
		}
	}
	return state, heard
}

// clusterSpec has the members of a cluster's spec that placement reads.
type clusterSpec struct {
	Placement     placementSpec `json:"placement"`
	HostedCluster struct {
		Release struct {
			Image string `json:"image"`
		} `json:"release"`
	} `json:"hostedCluster"`
}

// placementSpec has a cluster's wishes for its placement. In JSON it may be a text, the management cluster's
// name, as older clients of the Platform API write it.
type placementSpec struct {
	ManagementCluster cluster.ManagementCluster `json:"managementCluster"`
	Selector          map[string]string         `json:"selector"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *placementSpec) UnmarshalJSON(data []byte) error {
	type object placementSpec
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &p.ManagementCluster)
	}
	return json.Unmarshal(data, (*object)(p))
}

// demandOf returns the demand of a cluster's spec. A spec in an unknown form has no special demand.
func demandOf(spec json.RawMessage, amounts Amounts) Demand {
	var s clusterSpec
	_ = json.Unmarshal(spec, &s)
	return Demand{Named: s.Placement.ManagementCluster, Selector: s.Placement.Selector, Version: versionOf(
		s.HostedCluster.Release.Image), Amounts: amounts}
}

// versionOf returns the version in a release image's tag, "" without one.
func versionOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	i := strings.LastIndex(image, ":")
	if i < 0 || strings.Contains(image[i:], "/") {
		return ""
	}
	return image[i+1:]
}
