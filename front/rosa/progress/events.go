package progress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
)

// History is what a resource's record has, in the order of its changes. The
// records' status is as the lifecycle manager keeps it: {"reports":[...]} with
// the reports that the change touched.
type History struct {
	ID, Name string
	Created  time.Time // zero: with the first record
	Records  []clm.HistoryRecord
}

// Happened is one event, and the record that it comes from: so a reader knows
// which events it has seen.
type Happened struct {
	platform.Event
	Resource string // id
	Seq      int64
}

// stages in their order, NodesReady apart.
var stages = []platform.EventStage{
	platform.EventStagePlaced, platform.EventStageOrdered, platform.EventStagePlaneStarting, platform.EventStageAPIServing, platform.EventStageReady,
}

// Events are what happened to a cluster, the oldest first, from its history and
// those of its node pools. More history only ever adds events at the end, as
// long as records come in the order of their times.
func Events(see Placement, cluster History, pools ...History) []Happened {
	t := teller{see: see, begin: cluster.Created, pools: map[string]*poolState{}}
	type step struct {
		history *History
		record  clm.HistoryRecord
	}
	var steps []step
	for _, r := range cluster.Records {
		steps = append(steps, step{&cluster, r})
	}
	for i := range pools {
		for _, r := range pools[i].Records {
			steps = append(steps, step{&pools[i], r})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int {
		return cmp.Or(a.record.Time.Compare(b.record.Time), cmp.Compare(a.record.Seq, b.record.Seq))
	})
	for _, s := range steps {
		t.at, t.resource, t.seq = s.record.Time, s.history.ID, s.record.Seq
		if t.begin.IsZero() {
			t.begin = t.at
		}
		if s.history == &cluster {
			t.cluster(s.record)
		} else {
			t.pool(s.history, s.record)
		}
		t.nodes()
	}
	return t.events
}

// teller goes through records and keeps what it has told.
type teller struct {
	see      Placement
	hosts    []string  // management clusters that hosted the cluster, as far as records say it
	at       time.Time // of the present record
	begin    time.Time
	reports  map[string]Reports // the latest of each adapter, by resource
	last     time.Time          // of the latest event
	resource string
	seq      int64
	events   []Happened

	generation int32
	reached    int // how many of stages
	waiting    string
	available  string // of the control plane, once it was Ready
	power      string
	version    string
	degraded   string
	deleting   map[string]bool // adapters that are through; nil: it is not being deleted
	pools      map[string]*poolState
	nodesReady bool
}

type poolState struct {
	generation int32
	ready      bool
	failed     string
	gone       bool
}

// tell adds an event. Its time is the record's, unless it is known better.
func (t *teller) tell(kind platform.EventType, stage platform.EventStage, reason, message string, when time.Time) {
	if when.IsZero() {
		when = t.at
	}
	if when.Before(t.last) {
		when = t.last // clocks differ; what comes later is not earlier
	}
	t.last = when
	t.events = append(t.events, Happened{Resource: t.resource, Seq: t.seq, Event: platform.Event{
		Time: when, Type: kind, Stage: stage, Reason: reason, Message: message, SinceMs: max(
			0, when.Sub(t.begin).Milliseconds()),
	}})
}

func (t *teller) normal(reason, format string, args ...any) {
	t.tell(platform.EventTypeNormal, "", reason, fmt.Sprintf(format, args...), time.Time{})
}

func (t *teller) cluster(r clm.HistoryRecord) {
	switch {
	case r.Action == "create":
		t.tell(platform.EventTypeNormal, platform.EventStageAccepted, "Created", "by "+r.Principal, time.Time{})
	case r.Action == "delete":
		t.deleting = map[string]bool{}
		t.normal("DeletionRequested", "by %s", r.Principal)
	case r.Action == "remove":
		t.normal("Deleted", "nothing is left")
	case r.Action == "force-delete":
		t.tell(platform.EventTypeWarning, "", "ForceDeleted", "by "+r.Principal, time.Time{})
	case r.Spec != nil && r.Generation > t.generation:
		t.normal("Updated", "by %s; generation %d", r.Principal, r.Generation)
	}
	t.generation = max(t.generation, r.Generation)
	reports, ok := t.reportsOf(r)
	switch {
	case !ok || r.Action != "update":
	case t.deleting != nil:
		t.undone(reports)
	default:
		t.control(reports)
	}
}

// undone tells what of a cluster that is being deleted is gone.
func (t *teller) undone(reports Reports) {
	for _, part := range []struct{ adapter, reason, message string }{
		{hostedCluster, "ControlPlaneDeleted", "the control plane is gone"}, {placement, "PlacementReleased",
			"its place is free"},
	} {
		report, _ := reports.of(part.adapter)
		if condition(report, "Finalized").Status == "True" && !t.deleting[part.adapter] {
			t.deleting[part.adapter] = true
			t.normal(part.reason, "%s", part.message)
		}
	}
}

// reportsOf are a resource's reports after a record's change, as the caller may
// read them; ok is false when the record did not touch them.
func (t *teller) reportsOf(r clm.HistoryRecord) (reports Reports, ok bool) {
	var seen struct {
		Reports Reports `json:"reports"`
	}
	if len(r.Status) == 0 || json.Unmarshal(r.Status, &seen) != nil {
		return nil, false
	}
	known := slices.Clone(t.reports[t.resource])
	for _, report := range seen.Reports {
		known = slices.DeleteFunc(known, func(old clm.AdapterStatus) bool { return old.Adapter == report.Adapter })
		known = append(known, report)
	}
	if t.reports == nil {
		t.reports = map[string]Reports{}
	}
	t.reports[t.resource] = known
	f := filterOf(t.see, t.hosts, known)
	t.hosts = f.hosts
	return f.reports(known), true
}

// control tells how far the control plane has come.
func (t *teller) control(reports Reports) {
	place, plane := reports.available(placement), reports.available(hostedCluster)
	at, where := data[hosted](reports, hostedCluster), data[placed](reports, placement)
	report, _ := reports.of(hostedCluster)
	ready := plane.Status == "True"

	// A later stage is not reached without those before it.
	now := 0
	switch {
	case ready || at.Stages.Ready != "":
		now = 5
	case at.Stages.APIServing != "" || at.Endpoint.Host != "":
		now = 4
	case at.Stages.PlaneStarting != "":
		now = 3
	case at.Stages.Ordered != "" || condition(report, "Applied").Status == "True":
		now = 2
	case place.Status == "True":
		now = 1
	}
	for ; t.reached < now; t.reached++ {
		stage := stages[t.reached]
		when, reason, message := time.Time{}, string(stage), ""
		switch stage {
		case platform.EventStagePlaced:
			message = "on a management cluster"
			if t.see == ShowPlacement {
				message = "on management cluster " + or(where.ManagementCluster, at.TargetCluster)
			}
		case platform.EventStageOrdered:
			when, message = parse(at.Stages.Ordered), "the control plane is ordered"
		case platform.EventStagePlaneStarting:
			when, message = parse(at.Stages.PlaneStarting), "the control plane is starting"
		case platform.EventStageAPIServing:
			when, message = parse(at.Stages.APIServing), "its API answers"
			if at.Endpoint.Host != "" {
				message = fmt.Sprintf("its API answers at %s:%d", at.Endpoint.Host, at.Endpoint.Port)
			}
		case platform.EventStageReady:
			when, message = parse(at.Stages.Ready), or(plane.Message, "the control plane serves")
			t.available, t.power, t.version = "True", at.Power, at.Version
		}
		t.tell(platform.EventTypeNormal, stage, reason, message, when)
		t.waiting = ""
	}
	if t.reached < len(stages) {
		if where.ManagementCluster != "" && at.TargetCluster == "" {
			plane = clm.AdapterCondition{} // it does not know yet where
		}
		t.waits(place, plane)
		return
	}
	t.life(plane, at)
}

// waits tells what holds the next stage up.
func (t *teller) waits(place, plane clm.AdapterCondition) {
	why := plane
	if t.reached == 0 {
		why = place
	}
	if why.Status != "False" || why.Reason+why.Message == t.waiting {
		return
	}
	t.waiting = why.Reason + why.Message
	kind := platform.EventTypeWaiting
	if slices.Contains(final, why.Reason) {
		kind = platform.EventTypeWarning
	}
	t.tell(kind, stages[t.reached], why.Reason, why.Message, time.Time{})
}

// life tells what becomes of a control plane that was Ready.
func (t *teller) life(plane clm.AdapterCondition, at hosted) {
	if plane.Status != "" && plane.Status != t.available {
		t.available = plane.Status
		switch {
		case plane.Status == "True":
			t.normal("Available", "%s", or(plane.Message, "the control plane serves again"))
		case slices.Contains(final, plane.Reason):
			t.tell(platform.EventTypeWarning, "", plane.Reason, plane.Message, time.Time{})
		default:
			t.normal(or(plane.Reason, "Unavailable"), "%s", plane.Message)
		}
	}
	if at.Power != "" && at.Power != t.power {
		if t.power != "" || at.Power != "Awake" {
			t.normal(at.Power, "the control plane is %s", power(at.Power))
		}
		t.power = at.Power
	}
	if at.Version != "" && at.Version != t.version {
		if t.version != "" {
			t.normal("Upgraded", "from %s to %s", t.version, at.Version)
		}
		t.version = at.Version
	}
	if at.Degraded != t.degraded {
		if t.degraded = at.Degraded; t.degraded != "" {
			t.tell(platform.EventTypeWarning, "", "Degraded", t.degraded, time.Time{})
		}
	}
}

func power(s string) string {
	switch s {
	case "Asleep":
		return "asleep; a request wakes it"
	case "Waking":
		return "waking"
	}
	return "awake"
}

func (t *teller) pool(h *History, r clm.HistoryRecord) {
	state := t.pools[h.ID]
	if state == nil {
		state = &poolState{}
		t.pools[h.ID] = state
	}
	switch {
	case r.Action == "create":
		t.normal("NodePoolCreated", "%s, by %s", h.Name, r.Principal)
	case r.Action == "delete":
		state.gone = true
		t.normal("NodePoolDeletionRequested", "%s, by %s", h.Name, r.Principal)
	case r.Action == "remove", r.Action == "force-delete":
		state.gone = true
		t.normal("NodePoolDeleted", "%s", h.Name)
	case r.Spec != nil && r.Generation > state.generation:
		t.normal("NodePoolUpdated", "%s, by %s; generation %d", h.Name, r.Principal, r.Generation)
		state.ready = false
	}
	state.generation = max(state.generation, r.Generation)
	reports, ok := t.reportsOf(r)
	if !ok || state.gone {
		return
	}
	report, _ := reports.of(nodePool)
	available := condition(report, "Available")
	ready := available.Status == "True" && report.ObservedGeneration == state.generation
	if ready && !state.ready {
		t.normal("NodePoolReady", "%s: %s", h.Name, or(available.Message, "its nodes are Ready"))
	}
	state.ready = ready
	if slices.Contains(final, available.Reason) && !ready && state.failed != available.Reason {
		t.tell(platform.EventTypeWarning, "", available.Reason, h.Name+": "+available.Message, time.Time{})
	}
	state.failed = available.Reason
}

// nodes tells, once, that the cluster is ready with all the node pools that it
// has.
func (t *teller) nodes() {
	if t.nodesReady || t.deleting != nil || t.reached < len(stages) {
		return
	}
	there := 0
	for _, state := range t.pools {
		if state.gone {
			continue
		}
		if there++; !state.ready {
			return
		}
	}
	if there > 0 {
		t.nodesReady = true
		t.tell(platform.EventTypeNormal, platform.EventStageNodesReady, string(platform.EventStageNodesReady),
			"all nodes of all node pools are Ready", time.Time{})
	}
}

func parse(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}
