package rosa

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/cluster/progress"
)

// clusterStatus gives the status of a cluster the shape of the wire. The
// placement is nil while there is none, and when the caller may not read it.
func clusterStatus(r clm.Resource, visibility progress.Visibility, now time.Time) (platform.ClusterStatus,
	*platform.PlacementRef) {
	s := progress.OfCluster(r, visibility)
	shown := platform.ClusterStatus{
		Phase: platform.ClusterPhase(s.Phase), Reason: s.Reason, Message: s.Message,
		ObservedGeneration: s.ObservedGeneration, Conditions: resourceConditions(s.Conditions),
		LastUpdateTime: s.LastUpdate, Power: s.Power, Version: s.Version, Upgrade: toUpgrade(s.Upgrade, now),
	}
	if e := s.Endpoint; e != nil {
		shown.ControlPlaneEndpoint = &platform.Endpoint{Host: e.Host, Port: e.Port}
	}
	shown.Rotations = toRotations(r.Spec, s.Rotations)
	shown.Size = toSize(s.Size)
	if s.ManagementCluster == "" {
		return shown, nil
	}
	return shown, &platform.PlacementRef{Name: r.ID, ManagementCluster: string(s.ManagementCluster)}
}

// nodePoolStatus gives the status of a node pool the shape of the wire.
func nodePoolStatus(r clm.Resource, visibility progress.Visibility) platform.NodePoolStatus {
	s := progress.OfNodePool(r, visibility)
	return platform.NodePoolStatus{
		Phase: platform.NodePoolPhase(s.Phase), Reason: s.Reason, Message: s.Message,
		ObservedGeneration: s.ObservedGeneration, Conditions: resourceConditions(s.Conditions),
		LastUpdateTime: s.LastUpdate, Replicas: s.Ready, Ready: s.Ready, Version: s.Version,
		Simulated: hasSimulatedNodes(r.Spec),
	}
}

// hasSimulatedNodes reports whether the nodes of a node pool with this spec are simulated.
func hasSimulatedNodes(spec json.RawMessage) bool {
	var s struct{ Provider cluster.NodeProvider }
	_ = json.Unmarshal(spec, &s) // the lifecycle manager stores objects only
	return s.Provider == "" || s.Provider == cluster.Simulated
}

// resourceConditions gives the conditions of a resource the shape of the wire.
func resourceConditions(conditions []clm.ResourceCondition) []platform.Condition {
	shown := []platform.Condition{}
	for _, c := range conditions {
		shown = append(shown, platform.Condition{
			Type: c.Type, Status: metav1.ConditionStatus(c.Status), ObservedGeneration: int64(c.ObservedGeneration),
			LastTransitionTime: metav1.NewTime(c.LastTransitionTime), Reason: c.Reason, Message: c.Message,
		})
	}
	return shown
}

// controllerStatuses returns the reports on a cluster (nodePool "") or node pool
// in the shape of the wire, without the members that the caller may not read.
func controllerStatuses(id cluster.ID, nodePool cluster.NodePoolID, reports []clm.AdapterStatus,
	visibility progress.Visibility) []platform.ControllerStatus {
	all := []platform.ControllerStatus{}
	for _, r := range progress.Filter(reports, visibility) {
		s := platform.ControllerStatus{
			ClusterID: string(id), NodepoolID: string(nodePool), ControllerName: r.Adapter,
			ObservedGeneration: int64(r.ObservedGeneration), Conditions: []platform.Condition{},
			Metadata: objectOrEmpty(r.Metadata), Data: objectOrEmpty(r.Data), LastUpdated: r.LastReportTime,
		}
		for _, c := range r.Conditions {
			s.Conditions = append(s.Conditions, platform.Condition{
				Type: c.Type, Status: metav1.ConditionStatus(c.Status), ObservedGeneration: s.ObservedGeneration,
				LastTransitionTime: metav1.NewTime(c.LastTransitionTime), Reason: c.Reason, Message: c.Message,
			})
		}
		all = append(all, s)
	}
	return all
}

func objectOrEmpty(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage(`{}`)
	}
	return raw
}

// wireEvent gives an event the shape of the wire.
func wireEvent(e progress.Event) platform.Event {
	return platform.Event{
		Time: e.Time, Type: platform.EventType(e.Type), Stage: platform.EventStage(e.Stage),
		Reason: e.Reason, Message: e.Message, SinceMs: e.Since.Milliseconds(),
	}
}
