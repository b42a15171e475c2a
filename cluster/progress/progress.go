// Package progress computes how far clusters and node pools have come: their
// phase and status, from the conditions of the lifecycle manager and the reports
// of adapters, and their events, from their histories. It also removes from
// reports the parts that a customer may not read (Filter).
//
// Every function depends on its arguments only. The fronts encode the results.
package progress

import (
	"cmp"
	"strings"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/api/rotation"
	"atoll.dev/cluster"
)

// Phase is how far a cluster or node pool has come, in one word.
type Phase string

const (
	WaitingForPlacement Phase = "WaitingForPlacement" // clusters only
	Provisioning        Phase = "Provisioning"
	Ready               Phase = "Ready"
	Deleting            Phase = "Deleting"
	Failed              Phase = "Failed" // until somebody changes something
)

// Degraded is the reason of a cluster that is Ready while its control plane reports a problem.
const Degraded = "Degraded"

// Status has the members that clusters and node pools have in common.
type Status struct {
	Phase              Phase
	Reason             string
	Message            string
	ObservedGeneration int64 // the latest that every required adapter has reported on
	Conditions         []clm.ResourceCondition
	LastUpdate         time.Time // of the spec or of a condition
}

// ClusterStatus is the status of a cluster.
type ClusterStatus struct {
	Status
	Endpoint          *cluster.Endpoint // nil while unknown
	ServerName        string            // of the API server's certificate, below the region's domain; "" while unknown
	Power             string            // Awake, Asleep or Waking; "" while unknown
	Version           string            // of Kubernetes; "" while unknown
	ManagementCluster cluster.ManagementCluster
	Upgrade           cluster.UpgradeData // the last one
	// Rotations and Size are as the hosted-cluster adapter reports them.
	Rotations map[rotation.Key]cluster.RotationData
	Size      cluster.SizeData
}

// NodePoolStatus is the status of a node pool.
type NodePoolStatus struct {
	Status
	Ready   int // nodes
	Version string
}

// OfCluster computes the status of a cluster from its resource, which has its
// reports. ManagementCluster is "" while there is no placement, and when the
// caller may not read it.
func OfCluster(r clm.Resource, visibility Visibility) ClusterStatus {
	f := newFilter(visibility, nil, r.Statuses)
	reports := f.reportedConditions(r.Statuses)
	plane := f.dataOf(cluster.AdapterHostedCluster).HostedCluster()
	s := ClusterStatus{Status: commonStatus(r, f), ServerName: plane.ServerName, Power: plane.Power,
		Version: plane.Version, Upgrade: plane.UpgradeReport(), Rotations: plane.RotationReports(), Size: plane.SizeReport()}
	if plane.Endpoint.Host != "" {
		s.Endpoint = &plane.Endpoint
	}
	s.Phase, s.Reason, s.Message = clusterPhase(r, reports, plane)
	if visibility == ShowPlacement {
		s.ManagementCluster = cmp.Or(f.reported.Placement().ManagementCluster, plane.TargetCluster)
	}
	return s
}

func clusterPhase(r clm.Resource, reports cluster.Reports, data cluster.HostedClusterData) (Phase, string, string) {
	const ordering = "the control plane is being ordered"
	place, plane := reports.Available(cluster.AdapterPlacement), reports.Available(cluster.AdapterHostedCluster)
	report, _ := reports.Find(cluster.AdapterHostedCluster)
	isCurrent := report.ObservedGeneration == r.Generation
	waiting := cmp.Or(place.Reason, string(cluster.ReasonWaitingForPlacement))
	switch {
	case r.DeletedTime != nil:
		return Deleting, string(cluster.ReasonDeleting), deletionMessage(r, reports)
	case plane.Status == cluster.StatusTrue && !isCurrent, servesBeforeChange(plane, data):
		return Ready, string(cluster.ReasonUpdating), "the control plane serves; the latest change is under way"
	case plane.Status == cluster.StatusTrue && data.Degraded != "":
		return Ready, Degraded, data.Degraded
	case plane.Status == cluster.StatusTrue:
		return Ready, cmp.Or(plane.Reason, string(cluster.ReasonAsExpected)),
			cmp.Or(plane.Message, "the control plane serves")
	case place.Status != cluster.StatusTrue && plane.Status == "":
		return WaitingForPlacement, waiting, cmp.Or(place.Message, placementPending)
	case place.Status != cluster.StatusTrue && data.TargetCluster == "":
		return WaitingForPlacement, waiting, cmp.Or(place.Message, plane.Message)
	case data.TargetCluster == "": // hosted-cluster has not run since the placement
		return Provisioning, cmp.Or(place.Reason, string(cluster.ReasonPlaced)), cmp.Or(place.Message, ordering)
	case isCurrent && cluster.Reason(plane.Reason).IsFinal():
		return Failed, plane.Reason, plane.Message
	}
	return Provisioning, cmp.Or(plane.Reason, string(Provisioning)), cmp.Or(plane.Message, data.Progressing, ordering)
}

// servesBeforeChange reports whether the control plane serves and its management cluster has not acted on the latest
// change yet. Available is False then, because it is about the latest generation.
func servesBeforeChange(available clm.AdapterCondition, data cluster.HostedClusterData) bool {
	reason := cluster.Reason(available.Reason)
	return data.Serving && (reason == cluster.ReasonOrdered || reason == cluster.ReasonUpdating)
}

// OfNodePool computes the status of a node pool from its resource, which has its
// reports.
func OfNodePool(r clm.Resource, visibility Visibility) NodePoolStatus {
	f := newFilter(visibility, nil, r.Statuses)
	reports := f.reportedConditions(r.Statuses)
	data := f.dataOf(cluster.AdapterNodePool).NodePool()
	s := NodePoolStatus{Status: commonStatus(r, f), Ready: data.Replicas, Version: data.Version}
	s.Phase, s.Reason, s.Message = nodePoolPhase(r, reports)
	return s
}

func nodePoolPhase(r clm.Resource, reports cluster.Reports) (Phase, string, string) {
	report, _ := reports.Find(cluster.AdapterNodePool)
	isCurrent := report.ObservedGeneration == r.Generation
	available := reports.Available(cluster.AdapterNodePool)
	switch {
	case r.DeletedTime != nil:
		return Deleting, string(cluster.ReasonDeleting), deletionMessage(r, reports)
	case available.Status == cluster.StatusTrue && isCurrent:
		return Ready, cmp.Or(available.Reason, string(cluster.ReasonAsExpected)),
			cmp.Or(available.Message, "all nodes are Ready")
	case available.Status == cluster.StatusTrue:
		return Provisioning, string(cluster.ReasonUpdating), "the latest change is under way"
	case isCurrent && cluster.Reason(available.Reason).IsFinal():
		return Failed, available.Reason, available.Message
	}
	return Provisioning, cmp.Or(available.Reason, string(Provisioning)),
		cmp.Or(available.Message, "the nodes are being ordered")
}

// commonStatus computes all but the phase.
func commonStatus(r clm.Resource, f filter) Status {
	return Status{
		ObservedGeneration: observedGeneration(r),
		Conditions:         f.conditions(r.Status.Conditions),
		LastUpdate:         lastUpdate(r),
	}
}

// deletionMessage names the adapters that a deletion waits for.
func deletionMessage(r clm.Resource, reports cluster.Reports) string {
	var waits []string
	for _, a := range r.Status.Awaiting {
		report, _ := reports.Find(cluster.Adapter(a.Adapter))
		finalized := cluster.Condition(report, cluster.ConditionFinalized)
		if report.ObservedGeneration == r.Generation && finalized.Message != "" {
			waits = append(waits, a.Adapter+" ("+finalized.Message+")")
			continue
		}
		waits = append(waits, a.Adapter)
	}
	if len(waits) == 0 {
		return "what belongs to it goes first"
	}
	return "waiting for " + strings.Join(waits, ", ")
}

// observedGeneration returns the latest generation that every required adapter
// has reported on; 0 when one of them has not reported at all.
func observedGeneration(r clm.Resource) int64 {
	if len(r.Statuses) == 0 {
		return 0
	}
	least := int64(r.Generation)
	for _, a := range r.Status.Awaiting {
		report, ok := cluster.Reports(r.Statuses).Find(cluster.Adapter(a.Adapter))
		if !ok {
			return 0
		}
		least = min(least, int64(report.ObservedGeneration))
	}
	return least
}

// lastUpdate returns when the spec or a condition changed last.
func lastUpdate(r clm.Resource) time.Time {
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
