// Package progress says how far clusters and node pools have come: their
// status, from what the lifecycle manager concludes and adapters report, and
// what happened to them, from its histories.
//
// All of it is a function of what is given. Package front/rosa does the rest,
// and nothing else imports this one.
package progress

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
)

// The adapters whose reports say how far a cluster has come. Their data is as
// their task configs make it (adapters/).
const (
	placement     = "placement"
	hostedCluster = "hosted-cluster"
	nodePool      = "node-pool"
)

// Reports are what adapters said of one resource.
type Reports []clm.AdapterStatus

// of is an adapter's report; ok says whether there is one.
func (r Reports) of(adapter string) (report clm.AdapterStatus, ok bool) {
	for _, s := range r {
		if s.Adapter == adapter {
			return s, true
		}
	}
	return report, false
}

// available is what an adapter says of Available; the zero value when it says
// nothing.
func (r Reports) available(adapter string) clm.AdapterCondition {
	report, _ := r.of(adapter)
	return condition(report, "Available")
}

func condition(report clm.AdapterStatus, kind string) clm.AdapterCondition {
	i := slices.IndexFunc(report.Conditions, func(c clm.AdapterCondition) bool { return c.Type == kind })
	if i < 0 {
		return clm.AdapterCondition{}
	}
	return report.Conditions[i]
}

// placed is the data of adapter placement.
type placed struct {
	ManagementCluster string `json:"management_cluster"`
	Why               string `json:"why"` // it waits, in words for the cluster's owner
}

// hosted is the data of adapter hosted-cluster.
type hosted struct {
	TargetCluster string `json:"target_cluster"`
	Endpoint      struct {
		Host string `json:"host"`
		Port int    `json:"port"`
	} `json:"endpoint"`
	Version     string `json:"version"`
	Power       string `json:"power"`
	Degraded    string `json:"degraded"`
	Progressing string `json:"progressing"`
	// When each was seen first, RFC 3339; "" for not yet.
	Stages struct {
		Ordered       string `json:"ordered"`
		PlaneStarting string `json:"plane_starting"`
		APIServing    string `json:"api_serving"`
		Ready         string `json:"ready"`
	} `json:"stages"`
}

// pooled is the data of adapter node-pool.
type pooled struct {
	Replicas int    `json:"replicas"` // nodes that are Ready
	Version  string `json:"version"`
}

// data reads a report's data. What is not as it should be is not there.
func data[T any](r Reports, adapter string) (v T) {
	report, _ := r.of(adapter)
	_ = json.Unmarshal(report.Data, &v)
	return v
}

// final are reasons for which a cluster does not come up before somebody
// changes something: its spec, or the management cluster.
var final = []string{
	"Refused", "VersionNotAvailable", "version-not-available", "InvalidConfiguration",
	"PlaneFailed", "PortTaken", "DiskFull", "BinaryMissing",
	"ValidationFailed", "InvalidReplicas",
}

// Cluster is the status of a cluster, and where its control plane is: nil when
// that is not decided, or not for the caller.
func Cluster(r clm.Resource, see Placement) (platform.ClusterStatus, *platform.PlacementRef) {
	f := filterOf(see, nil, r.Statuses)
	reports := f.reports(r.Statuses)
	control, where := data[hosted](reports, hostedCluster), data[placed](reports, placement)
	s := platform.ClusterStatus{
		ObservedGeneration: observed(r), Conditions: conditions(
			f.conditions(r.Status.Conditions)), LastUpdateTime: updated(r),
		Power: control.Power, Version: control.Version,
	}
	if control.Endpoint.Host != "" {
		s.ControlPlaneEndpoint = &platform.Endpoint{Host: control.Endpoint.Host, Port: control.Endpoint.Port}
	}
	s.Phase, s.Reason, s.Message = clusterPhase(r, reports, control)
	name := where.ManagementCluster
	if name == "" {
		name = control.TargetCluster
	}
	if name == "" || see != ShowPlacement {
		return s, nil
	}
	return s, &platform.PlacementRef{Name: r.ID, ManagementCluster: name}
}

func clusterPhase(r clm.Resource, reports Reports, control hosted) (phase platform.ClusterPhase, reason,
	message string) {
	place, plane := reports.available(placement), reports.available(hostedCluster)
	report, _ := reports.of(hostedCluster)
	current := report.ObservedGeneration == r.Generation
	switch {
	case r.DeletedTime != nil:
		reason, message = deleting(r, reports)
		return platform.ClusterPhaseDeleting, reason, message
	case plane.Status == "True" && !current:
		return platform.ClusterPhaseReady, "Updating", "the control plane serves; the latest change is under way"
	case plane.Status == "True" && control.Degraded != "":
		return platform.ClusterPhaseReady, "Degraded", control.Degraded
	case plane.Status == "True":
		return platform.ClusterPhaseReady, or(plane.Reason, "AsExpected"), or(plane.Message, "the control plane serves")
	case place.Status != "True" && plane.Status == "":
		return platform.ClusterPhaseWaitingForPlacement, or(place.Reason, "WaitingForPlacement"),
			or(place.Message, beingPlaced)
	case place.Status != "True" && control.TargetCluster == "":
		return platform.ClusterPhaseWaitingForPlacement, or(place.Reason, "WaitingForPlacement"),
			or(place.Message, plane.Message)
	case control.TargetCluster == "": // it does not know yet where
		return platform.ClusterPhaseProvisioning, or(place.Reason, "Placed"),
			or(place.Message, "the control plane is being ordered")
	case current && slices.Contains(final, plane.Reason):
		return platform.ClusterPhaseFailed, plane.Reason, plane.Message
	}
	message = or(plane.Message, or(control.Progressing, "the control plane is being ordered"))
	return platform.ClusterPhaseProvisioning, or(plane.Reason, "Provisioning"), message
}

// NodePool is the status of a node pool.
func NodePool(r clm.Resource, see Placement) platform.NodePoolStatus {
	f := filterOf(see, nil, r.Statuses)
	reports := f.reports(r.Statuses)
	nodes, available := data[pooled](reports, nodePool), reports.available(nodePool)
	report, _ := reports.of(nodePool)
	current := report.ObservedGeneration == r.Generation
	s := platform.NodePoolStatus{
		ObservedGeneration: observed(r), Conditions: conditions(
			f.conditions(r.Status.Conditions)), LastUpdateTime: updated(r),
		Replicas: nodes.Replicas, Ready: nodes.Replicas, Version: nodes.Version, Simulated: true,
	}
	switch {
	case r.DeletedTime != nil:
		s.Phase = platform.NodePoolPhaseDeleting
		s.Reason, s.Message = deleting(r, reports)
	case available.Status == "True" && current:
		s.Phase, s.Reason, s.Message = platform.NodePoolPhaseReady, or(available.Reason, "AsExpected"),
			or(available.Message, "all nodes are Ready")
	case available.Status == "True":
		s.Phase, s.Reason, s.Message = platform.NodePoolPhaseProvisioning, "Updating", "the latest change is under way"
	case current && slices.Contains(final, available.Reason):
		s.Phase, s.Reason, s.Message = platform.NodePoolPhaseFailed, available.Reason, available.Message
	default:
		s.Phase, s.Reason, s.Message = platform.NodePoolPhaseProvisioning, or(available.Reason, "Provisioning"),
			or(available.Message, "the nodes are being ordered")
	}
	return s
}

// deleting says what a deletion waits for.
func deleting(r clm.Resource, reports Reports) (reason, message string) {
	var waits []string
	for _, a := range r.Status.Awaiting {
		report, _ := reports.of(a.Adapter)
		if c := condition(report, "Finalized"); report.ObservedGeneration == r.Generation && c.Message != "" {
			waits = append(waits, a.Adapter+" ("+c.Message+")")
			continue
		}
		waits = append(waits, a.Adapter)
	}
	if len(waits) == 0 {
		return "Deleting", "what belongs to it goes first"
	}
	return "Deleting", "waiting for " + strings.Join(waits, ", ")
}

// observed is the latest generation on which everybody has reported who has to.
func observed(r clm.Resource) int64 {
	if len(r.Statuses) == 0 {
		return 0
	}
	least := int64(r.Generation)
	for _, a := range r.Status.Awaiting {
		report, ok := Reports(r.Statuses).of(a.Adapter)
		if !ok {
			return 0
		}
		least = min(least, int64(report.ObservedGeneration))
	}
	return least
}

// updated is when the spec or a condition changed last.
func updated(r clm.Resource) time.Time {
	latest := r.UpdatedTime
	for _, c := range r.Status.Conditions {
		if c.LastTransitionTime.After(latest) {
			latest = c.LastTransitionTime
		}
	}
	for _, s := range r.Statuses {
		for _, c := range s.Conditions {
			if c.LastTransitionTime.After(latest) {
				latest = c.LastTransitionTime
			}
		}
	}
	return latest
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

// conditions are in the API's form.
func conditions(of []clm.ResourceCondition) []platform.Condition {
	all := []platform.Condition{}
	for _, c := range of {
		all = append(all, platform.Condition{
			Type: c.Type, Status: metav1.ConditionStatus(c.Status), ObservedGeneration: int64(c.ObservedGeneration),
			LastTransitionTime: metav1.NewTime(c.LastTransitionTime), Reason: c.Reason, Message: c.Message,
		})
	}
	return all
}

// Controllers are the reports on a resource as the contract shows them.
func Controllers(cluster, nodePool string, reports []clm.AdapterStatus, see Placement) []platform.ControllerStatus {
	all := []platform.ControllerStatus{}
	for _, r := range filterOf(see, nil, reports).reports(reports) {
		if see != ShowPlacement {
			r.Data = without(r.Data, "management_cluster", "target_cluster")
		}
		s := platform.ControllerStatus{
			ClusterID: cluster, NodepoolID: nodePool, ControllerName: r.Adapter, ObservedGeneration: int64(
				r.ObservedGeneration),
			Conditions: []platform.Condition{}, Metadata: object(r.Metadata), Data: object(
				r.Data), LastUpdated: r.LastReportTime,
		}
		for _, c := range r.Conditions {
			s.Conditions = append(s.Conditions, platform.Condition{
				Type: c.Type, Status: metav1.ConditionStatus(c.Status), ObservedGeneration: int64(r.ObservedGeneration),
				LastTransitionTime: metav1.NewTime(c.LastTransitionTime), Reason: c.Reason, Message: c.Message,
			})
		}
		all = append(all, s)
	}
	return all
}

// without is an object without some members.
func without(raw json.RawMessage, names ...string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return nil
	}
	for _, name := range names {
		delete(members, name)
	}
	out, err := json.Marshal(members)
	if err != nil {
		return nil
	}
	return out
}

func object(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage(`{}`)
	}
	return raw
}
