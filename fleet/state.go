package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/api/work"
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

// maxReportAge is how long the report on an agent may stay unchanged before the agent counts as lost. Maestro
// repeats the report every minute while it receives messages of the agent, and reports a loss at once, so this
// limit takes effect only if Maestro itself does not work. This process measures the age by its own clock, from
// when it first read the report.
const maxReportAge = 210 * time.Second

// mcSpec is the spec of a management cluster.
type mcSpec struct {
	State    api.ManagementClusterState `json:"state"`
	Capacity Amounts                    `json:"capacity"`
	Versions []string                   `json:"versions"`
}

// presence has the reports on a management cluster's agent. CLM keeps reports in the status of its
// documents, in wire form.
type presence struct {
	Reports []struct {
		Adapter    string    `json:"adapter"`
		ObservedAt time.Time `json:"last_report_time"`
		Data       struct {
			LastSeen time.Time       `json:"last_seen"`
			Hosting  json.RawMessage `json:"hosting"` // a work.HostingReport, which a management cluster made
		} `json:"data"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"reports"`
}

// decodedMC is a decoded document of a management cluster. The inventory keeps it, because each decision reads all
// management clusters, and few of them change between two decisions.
type decodedMC struct {
	doc      store.Document
	m        ManagementCluster // without its state, which depends on the time
	declared api.ManagementClusterState
	presence presence
}

// hosting returns the report of hosting that came with the last report on the agent; nil when there is none.
func (p presence) hosting() *work.HostingReport {
	for _, r := range p.Reports {
		if r.Adapter != presenceAdapter || len(r.Data.Hosting) == 0 {
			continue
		}
		if report, err := work.ParseHostingReport(r.Data.Hosting); err == nil {
			return &report
		}
	}
	return nil
}

// decodeMC decodes a management cluster's document. A document with an error has the member Unusable.
func decodeMC(d store.Document) decodedMC {
	r := decodedMC{doc: d, m: ManagementCluster{ID: cluster.ManagementClusterID(d.ID),
		Name: cluster.ManagementCluster(d.Name)}}
	m := &r.m
	var wire clm.Resource
	var spec mcSpec
	if err := json.Unmarshal(d.Wire, &wire); err != nil {
		m.Unusable = fmt.Sprintf("it cannot be read: %v", err)
	} else if err := json.Unmarshal(wire.Spec, &spec); err != nil {
		m.Unusable = fmt.Sprintf("its spec cannot be read: %v", err)
	}
	m.Labels, m.Versions, m.Capacity, r.declared = wire.Labels, spec.Versions, spec.Capacity, spec.State
	if d.DeletedAt != nil {
		m.Unusable = "it is being deleted"
	}
	for name, n := range m.Capacity {
		if n > maxAmount {
			m.Unusable = fmt.Sprintf("its capacity of %s is above the limit of 2^40", name)
		}
	}
	switch spec.State {
	case "", api.Ready, api.Cordoned, api.Draining:
	default:
		m.Unusable = fmt.Sprintf("its state %s does not exist; the states are Ready, Cordoned and Draining", spec.State)
	}
	if err := json.Unmarshal(d.Status, &r.presence); err != nil {
		m.Unusable = fmt.Sprintf("its status cannot be read: %v", err)
	}
	m.Hosting = r.presence.hosting()
	return r
}

// withStateAt returns the management cluster with its state at now; its report last changed at reportChanged. The
// caller sets the reservations and changes nothing else, because the other members are shared.
func (r decodedMC) withStateAt(now, reportChanged time.Time) ManagementCluster {
	m := r.m
	m.State, m.LastSeen = stateOf(r.declared, r.presence, now.Sub(reportChanged))
	if !m.isConnected() {
		m.Hosting = nil // it may be very old
	}
	return m
}

// isConnected reports whether the agent was connected at the time of the management cluster's state, by a report that
// was not too old.
func (m ManagementCluster) isConnected() bool { return m.State != api.Lost && m.State != api.Unheard }

// reportsConnected reports whether the agent is connected by the last report, of any age.
func (r decodedMC) reportsConnected() bool {
	state, _ := stateOf(api.Ready, r.presence, 0)
	return state == api.Ready
}

// reportTime returns the time of the report on the agent; zero without a report.
func (r decodedMC) reportTime() time.Time {
	for _, report := range r.presence.Reports {
		if report.Adapter == presenceAdapter {
			return report.ObservedAt
		}
	}
	return time.Time{}
}

// stateOf returns the declared state if the agent is connected, Unheard if there is no report on it, else Lost; and
// when the agent was last seen. age is the time since the report last changed.
func stateOf(declared api.ManagementClusterState, seen presence, age time.Duration) (state api.ManagementClusterState,
	lastSeen time.Time) {
	state = api.Unheard
	for _, r := range seen.Reports {
		if r.Adapter != presenceAdapter {
			continue
		}
		lastSeen = r.ObservedAt
		if !r.Data.LastSeen.IsZero() {
			lastSeen = r.Data.LastSeen
		}
		state = api.Lost
		for _, c := range r.Conditions {
			if c.Type == conditionAvailable && c.Status == "True" && age <= maxReportAge {
				return cmp.Or(declared, api.Ready), r.ObservedAt
			}
		}
	}
	return state, lastSeen
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

// placementSpec has a cluster's requirements for its placement. In JSON it may be a string, the management cluster's
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
