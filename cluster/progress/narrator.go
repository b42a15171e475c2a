package progress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/cluster"
)

// narrator reads records in their order and collects the events. Its fields are
// the state after the records so far.
type narrator struct {
	visibility Visibility
	hosts      []cluster.ManagementCluster // that hosted the cluster, as far as the records show
	reports    map[string]cluster.Reports  // the latest of each adapter, by resource
	events     []Event

	start    time.Time
	now      time.Time // of the present record
	latest   time.Time // of the latest event
	resource string    // of the present record
	seq      int64     // of the present record

	generation      int32
	stagesReached   int    // of planeStages
	waitingFor      string // reason and message of the latest Waiting event
	available       string // status of Available, once the control plane was Ready
	power           string
	version         string
	degraded        string
	upgrade         string // phase
	deleting        bool
	finalized       map[cluster.Adapter]bool
	pools           map[string]*poolState
	nodesReadyAdded bool
}

// poolState is the state of a node pool after the records so far.
type poolState struct {
	generation int32
	ready      bool
	failed     string // reason of the latest Available
	gone       bool
}

// add appends an event. Its time is the record's, unless when is known; an event
// is never earlier than the one before it, although the clocks of the reporters
// differ.
func (n *narrator) add(kind EventType, stage Stage, reason, message string, when time.Time) {
	if when.IsZero() {
		when = n.now
	}
	if when.Before(n.latest) {
		when = n.latest
	}
	n.latest = when
	n.events = append(n.events, Event{
		Time: when, Type: kind, Stage: stage, Reason: reason, Message: message, Since: max(0, when.Sub(n.start)),
		Resource: n.resource, Seq: n.seq,
	})
}

// addNormal appends an event of no stage.
func (n *narrator) addNormal(reason, format string, args ...any) {
	n.add(Normal, "", reason, fmt.Sprintf(format, args...), time.Time{})
}

// addWarning appends an event that needs somebody.
func (n *narrator) addWarning(reason, message string) {
	n.add(Warning, "", reason, message, time.Time{})
}

func (n *narrator) readClusterRecord(r clm.HistoryRecord) {
	switch {
	case r.Action == "create":
		n.add(Normal, StageAccepted, "Created", "by "+r.Principal, time.Time{})
	case r.Action == "delete":
		n.deleting = true
		n.addNormal("DeletionRequested", "by %s", r.Principal)
	case r.Action == "remove":
		n.addNormal("Deleted", "nothing is left")
	case r.Action == "force-delete":
		n.addWarning("ForceDeleted", "by "+r.Principal)
	case r.Spec != nil && r.Generation > n.generation:
		n.addNormal("Updated", "by %s; generation %d", r.Principal, r.Generation)
	}
	n.generation = max(n.generation, r.Generation)
	reports, ok := n.readReports(r)
	switch {
	case !ok || r.Action != "update":
	case n.deleting:
		n.readFinalized(reports)
	default:
		n.readControlPlane(reports)
	}
}

// readFinalized adds an event for each part of a deleted cluster that is gone.
func (n *narrator) readFinalized(reports cluster.Reports) {
	if n.finalized == nil {
		n.finalized = map[cluster.Adapter]bool{}
	}
	for _, part := range []struct {
		adapter         cluster.Adapter
		reason, message string
	}{
		{cluster.AdapterHostedCluster, "ControlPlaneDeleted", "the control plane is gone"},
		{cluster.AdapterPlacement, "PlacementReleased", "its place is free"},
	} {
		report, _ := reports.Find(part.adapter)
		done := cluster.Condition(report, cluster.ConditionFinalized).Status == cluster.StatusTrue
		if done && !n.finalized[part.adapter] {
			n.finalized[part.adapter] = true
			n.addNormal(part.reason, "%s", part.message)
		}
	}
}

// readReports returns the present resource's reports after a record's change, as
// the caller may read them; ok is false when the record has no reports.
func (n *narrator) readReports(r clm.HistoryRecord) (reports cluster.Reports, ok bool) {
	var status struct {
		Reports cluster.Reports `json:"reports"`
	}
	if len(r.Status) == 0 || json.Unmarshal(r.Status, &status) != nil {
		return nil, false
	}
	known := slices.Clone(n.reports[n.resource])
	for _, report := range status.Reports {
		known = slices.DeleteFunc(known, func(old clm.AdapterStatus) bool { return old.Adapter == report.Adapter })
		known = append(known, report)
	}
	if n.reports == nil {
		n.reports = map[string]cluster.Reports{}
	}
	n.reports[n.resource] = known
	f := newFilter(n.visibility, n.hosts, known)
	n.hosts = f.hosts
	return f.reports(known), true
}

// readControlPlane adds the events of the control plane's way up, and after that
// those of its life.
func (n *narrator) readControlPlane(reports cluster.Reports) {
	place, plane := reports.Available(cluster.AdapterPlacement), reports.Available(cluster.AdapterHostedCluster)
	data, placement := reports.HostedCluster(), reports.Placement()
	now := reachedStages(reports)
	for ; n.stagesReached < now; n.stagesReached++ {
		n.addStage(planeStages[n.stagesReached], reports)
		n.waitingFor = ""
	}
	if n.stagesReached == len(planeStages) {
		n.readLife(plane, data)
		return
	}
	if placement.ManagementCluster != "" && data.TargetCluster == "" {
		plane = clm.AdapterCondition{} // hosted-cluster has not run since the placement
	}
	n.addWaiting(place, plane)
}

// reachedStages returns how many of planeStages the reports have reached. A
// later stage is not reached without those before it.
func reachedStages(reports cluster.Reports) int {
	data := reports.HostedCluster()
	report, _ := reports.Find(cluster.AdapterHostedCluster)
	isTrue := func(c clm.AdapterCondition) bool { return c.Status == cluster.StatusTrue }
	switch {
	case isTrue(reports.Available(cluster.AdapterHostedCluster)) || data.Stages.Ready != "":
		return 5
	case data.Stages.APIServing != "" || data.Endpoint.Host != "":
		return 4
	case data.Stages.PlaneStarting != "":
		return 3
	case data.Stages.Ordered != "" || isTrue(cluster.Condition(report, cluster.ConditionApplied)):
		return 2
	case isTrue(reports.Available(cluster.AdapterPlacement)):
		return 1
	}
	return 0
}

// addStage appends the event that a stage is reached.
func (n *narrator) addStage(stage Stage, reports cluster.Reports) {
	data, plane := reports.HostedCluster(), reports.Available(cluster.AdapterHostedCluster)
	when, message := time.Time{}, ""
	switch stage {
	case StagePlaced:
		message = "on a management cluster"
		if n.visibility == ShowPlacement {
			host := cmp.Or(reports.Placement().ManagementCluster, data.TargetCluster)
			message = "on management cluster " + string(host)
		}
	case StageOrdered:
		when, message = parseTime(data.Stages.Ordered), "the control plane is ordered"
	case StagePlaneStarting:
		when, message = parseTime(data.Stages.PlaneStarting), "the control plane is starting"
	case StageAPIServing:
		when, message = parseTime(data.Stages.APIServing), "its API answers"
		if data.Endpoint.Host != "" {
			message = fmt.Sprintf("its API answers at %s:%d", data.Endpoint.Host, data.Endpoint.Port)
		}
	case StageReady:
		when, message = parseTime(data.Stages.Ready), cmp.Or(plane.Message, "the control plane serves")
		n.available, n.power, n.version = cluster.StatusTrue, data.Power, data.Version
	}
	n.add(Normal, stage, string(stage), message, when)
}

// addWaiting appends why the next stage is not reached, unless the latest
// Waiting event has the same cause.
func (n *narrator) addWaiting(place, plane clm.AdapterCondition) {
	cause := plane
	if n.stagesReached == 0 {
		cause = place
	}
	if cause.Status != cluster.StatusFalse || cause.Reason+cause.Message == n.waitingFor {
		return
	}
	n.waitingFor = cause.Reason + cause.Message
	kind := Waiting
	if cluster.Reason(cause.Reason).IsFinal() {
		kind = Warning
	}
	n.add(kind, planeStages[n.stagesReached], cause.Reason, cause.Message, time.Time{})
}

// readLife adds the events of a control plane that was Ready once.
func (n *narrator) readLife(plane clm.AdapterCondition, data cluster.HostedClusterData) {
	if plane.Status != "" && plane.Status != n.available {
		n.available = plane.Status
		switch {
		case plane.Status == cluster.StatusTrue:
			n.addNormal("Available", "%s", cmp.Or(plane.Message, "the control plane serves again"))
		case cluster.Reason(plane.Reason).IsFinal():
			n.addWarning(plane.Reason, plane.Message)
		default:
			n.addNormal(cmp.Or(plane.Reason, "Unavailable"), "%s", plane.Message)
		}
	}
	if data.Power != "" && data.Power != n.power {
		if n.power != "" || data.Power != "Awake" {
			n.addNormal(data.Power, "the control plane is %s", describePower(data.Power))
		}
		n.power = data.Power
	}
	if data.Version != "" && data.Version != n.version {
		switch u := data.UpgradeReport(); {
		case n.version == "":
		case u.From == data.Version && u.To == n.version:
			n.addNormal("RolledBack", "from %s to %s", n.version, data.Version)
		default:
			n.addNormal("Upgraded", "from %s to %s", n.version, data.Version)
		}
		n.version = data.Version
	}
	n.readUpgrade(data.UpgradeReport())
	if data.Degraded != n.degraded {
		if n.degraded = data.Degraded; n.degraded != "" {
			n.addWarning("Degraded", n.degraded)
		}
	}
}

// readUpgrade adds the events of an upgrade that the version does not show.
func (n *narrator) readUpgrade(u cluster.UpgradeData) {
	if u.Phase == n.upgrade {
		return
	}
	n.upgrade = u.Phase
	switch u.Phase {
	case cluster.UpgradeFailed, cluster.UpgradeRollbackFailed:
		n.addWarning(u.Phase, u.Message)
	case cluster.UpgradeSoaks:
		if u.SoakUntil != nil {
			n.addNormal("Soaking", "the control plane can go back to %s until %s", u.From, u.SoakUntil.Format(time.RFC3339))
		}
	case cluster.UpgradeCompleted:
		n.addNormal("UpgradeCompleted", "the control plane does not go back to %s any more", u.From)
	}
}

func describePower(power string) string {
	switch power {
	case "Asleep":
		return "asleep; a request wakes it"
	case "Waking":
		return "waking"
	}
	return "awake"
}

func (n *narrator) readPoolRecord(h *History, r clm.HistoryRecord) {
	state := n.pools[h.ID]
	if state == nil {
		state = &poolState{}
		n.pools[h.ID] = state
	}
	switch {
	case r.Action == "create":
		n.addNormal("NodePoolCreated", "%s, by %s", h.Name, r.Principal)
	case r.Action == "delete":
		state.gone = true
		n.addNormal("NodePoolDeletionRequested", "%s, by %s", h.Name, r.Principal)
	case r.Action == "remove", r.Action == "force-delete":
		state.gone = true
		n.addNormal("NodePoolDeleted", "%s", h.Name)
	case r.Spec != nil && r.Generation > state.generation:
		n.addNormal("NodePoolUpdated", "%s, by %s; generation %d", h.Name, r.Principal, r.Generation)
		state.ready = false
	}
	state.generation = max(state.generation, r.Generation)
	reports, ok := n.readReports(r)
	if !ok || state.gone {
		return
	}
	report, _ := reports.Find(cluster.AdapterNodePool)
	available := cluster.Condition(report, cluster.ConditionAvailable)
	ready := available.Status == cluster.StatusTrue && report.ObservedGeneration == state.generation
	if ready && !state.ready {
		n.addNormal("NodePoolReady", "%s: %s", h.Name, cmp.Or(available.Message, "its nodes are Ready"))
	}
	state.ready = ready
	if cluster.Reason(available.Reason).IsFinal() && !ready && state.failed != available.Reason {
		n.addWarning(available.Reason, h.Name+": "+available.Message)
	}
	state.failed = available.Reason
}

// addNodesReady appends, once, that the cluster is ready with all the node pools
// that it has.
func (n *narrator) addNodesReady() {
	if n.nodesReadyAdded || n.deleting || n.stagesReached < len(planeStages) {
		return
	}
	pools := 0
	for _, state := range n.pools {
		if state.gone {
			continue
		}
		if pools++; !state.ready {
			return
		}
	}
	if pools > 0 {
		n.nodesReadyAdded = true
		n.add(Normal, StageNodesReady, string(StageNodesReady), "all nodes of all node pools are Ready", time.Time{})
	}
}

// parseTime reads a time of a report; the zero value when there is none.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
