package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/store"
)

// The store's kinds that fleet reads: CLM's entities of these names, and its
// requests for work.
const (
	kindCluster store.Kind = "Cluster"
	kindMC      store.Kind = "ManagementCluster"
	kindRequest store.Kind = "Request"
)

// presenceAdapter is the adapter that reports whether a management cluster's
// agent is heard.
const presenceAdapter = "maestro"

// silence is how long the report on an agent may stay as it is. Maestro repeats
// it every minute as long as the agent is heard, and says at once when it is
// not; this is for the case that Maestro itself is away. It is measured by this
// machine's clock alone, from when it saw the report move.
const silence = 210 * time.Second

// mcSpec is what is declared of a management cluster.
type mcSpec struct {
	State    api.ManagementClusterState `json:"state"`
	Capacity Amounts                    `json:"capacity"`
	Versions []string                   `json:"versions"`
}

// presence is what its agent's reports say. CLM keeps them in the status of its
// documents, in their wire form.
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

// reading is a resource of CLM, read once: a decision looks at all of them, and
// few change between two.
type reading struct {
	doc      store.Document
	m        ManagementCluster // without its state, which depends on the time
	declared api.ManagementClusterState
	seen     presence
}

func read(d store.Document) reading {
	r := reading{doc: d, m: ManagementCluster{ID: d.ID, Name: d.Name}}
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

// at is the management cluster at a time, when its report moved last at another.
// What is reserved there is added by others; the rest is shared, and not to be
// changed.
func (r reading) at(now, moved time.Time) ManagementCluster {
	m := r.m
	m.State, m.Heard = stateOf(r.declared, r.seen, now.Sub(moved) <= silence)
	return m
}

// available says that its agent is reported as heard.
func (r reading) available() bool {
	state, _ := stateOf(api.Ready, r.seen, true)
	return state == api.Ready
}

// reportTime is when the report on its agent was made; zero: there is none.
func (r reading) reportTime() time.Time {
	for _, report := range r.seen.Reports {
		if report.Adapter == presenceAdapter {
			return report.ObservedAt
		}
	}
	return time.Time{}
}

// stateOf is what was declared, unless its agent is not heard. recent says that
// the report moved not long ago.
func stateOf(declared api.ManagementClusterState, seen presence, recent bool) (state api.ManagementClusterState,
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
			if c.Type == "Available" && c.Status == "True" && recent {
				return cmp.Or(declared, api.Ready), r.ObservedAt
			}
		}
	}
	return state, heard
}

// clusterSpec is as much of a cluster's spec as placement heeds.
type clusterSpec struct {
	Placement     placementSpec `json:"placement"`
	HostedCluster struct {
		Release struct {
			Image string `json:"image"`
		} `json:"release"`
	} `json:"hostedCluster"`
}

// placementSpec says where a cluster is to go. A text is a management cluster's
// name, as older clients of the Platform API write it.
type placementSpec struct {
	ManagementCluster string            `json:"managementCluster"`
	Selector          map[string]string `json:"selector"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *placementSpec) UnmarshalJSON(data []byte) error {
	type object placementSpec
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &p.ManagementCluster)
	}
	return json.Unmarshal(data, (*object)(p))
}

// demandOf is what a cluster demands, by its resource's spec. A spec that says
// it otherwise than we know demands nothing special.
func demandOf(spec json.RawMessage, amounts Amounts) Demand {
	var s clusterSpec
	_ = json.Unmarshal(spec, &s)
	return Demand{Named: s.Placement.ManagementCluster, Selector: s.Placement.Selector, Version: versionOf(
		s.HostedCluster.Release.Image), Amounts: amounts}
}

// versionOf is the version that a release image names by its tag, "" for none.
func versionOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	i := strings.LastIndex(image, ":")
	if i < 0 || strings.Contains(image[i:], "/") {
		return ""
	}
	return image[i+1:]
}
