package operator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
)

// traceFacts are the facts of a trace.
type traceFacts struct {
	resourceFacts
	Works      []platform.Work
	WorksError error // why the works are not known
}

// trace is the output of `cluster trace`.
type trace struct {
	ID                string       `json:"id"`
	Name              string       `json:"name"`
	Account           string       `json:"account,omitempty"`
	Azure             string       `json:"azure_resource_id,omitempty"`
	ManagementCluster string       `json:"management_cluster,omitempty"`
	WaitsAt           string       `json:"waits_at,omitempty"` // the first hop that is not done
	Hops              []traceHop   `json:"hops"`
	Events            []traceEvent `json:"events"` // the earliest first
}

// hopState is how far a cluster has come at one hop.
type hopState string

// The states of a hop.
const (
	hopDone    hopState = "done"
	hopWaits   hopState = "waits"
	hopFailed  hopState = "failed"
	hopUnknown hopState = "unknown"
)

// traceHop is one part of the region that a cluster passes.
type traceHop struct {
	Hop    string     `json:"hop"`
	State  hopState   `json:"state"`
	Since  *time.Time `json:"since,omitempty"`
	Detail string     `json:"detail,omitempty"`
}

// traceEvent is one event of a cluster.
type traceEvent struct {
	Time   time.Time `json:"time"`
	Hop    string    `json:"hop"`
	Event  string    `json:"event"`
	Detail string    `json:"detail,omitempty"`
}

// latest returns the latest time at which the event may have been. Kubernetes writes the times of conditions in whole
// seconds, rounded down.
func (e traceEvent) latest() time.Time {
	if e.Time.Nanosecond() == 0 && (e.Hop == hopHosted || e.Hop == hopPlane) {
		return e.Time.Add(time.Second - 1)
	}
	return e.Time
}

// traceCluster orders the facts about a cluster by the hops of its way, and by time.
func traceCluster(f traceFacts) trace {
	r := f.Resource
	t := trace{ID: r.ID, Name: r.Name, Account: r.Tenancy["account"], Azure: azureIDOf(r.Spec), Events: []traceEvent{},
		ManagementCluster: managementClusterOf(f.Reports)}
	if t.ManagementCluster == "" && f.Placement != nil {
		t.ManagementCluster = f.Placement.ManagementCluster
	}
	t.addHistory(f)
	t.addCLM(f)
	t.addPlacement(f)
	t.addAdapters(f)
	t.addWorks(f)
	t.addHostedCluster(f)
	slices.SortStableFunc(t.Events, func(a, b traceEvent) int { return a.latest().Compare(b.latest()) })
	for _, hop := range t.Hops {
		if hop.State == hopDone || hop.State == hopUnknown {
			continue
		}
		t.WaitsAt = hop.Hop
		// The lifecycle manager, the sentinel and an adapter that has no error wait for the later hops.
		isAdapter := strings.HasPrefix(hop.Hop, hopAdapter)
		if hop.State == hopFailed || hop.Hop != hopCLM && hop.Hop != hopSentinel && !isAdapter {
			break
		}
	}
	return t
}

// The hops, in the order of the way.
const (
	hopFront    = "front"
	hopCLM      = "lifecycle manager"
	hopSentinel = "sentinel"
	hopFleet    = "placement"
	hopAdapter  = "adapter " // and its name
	hopMaestro  = "maestro"
	hopAgent    = "agent"
	hopHosted   = "hosted cluster"
	hopPlane    = "plane"
)

// addHop appends a hop. A zero since means that the time is unknown.
func (t *trace) addHop(name string, state hopState, since time.Time, format string, args ...any) {
	h := traceHop{Hop: name, State: state, Detail: fmt.Sprintf(format, args...)}
	if !since.IsZero() {
		h.Since = &since
	}
	t.Hops = append(t.Hops, h)
}

// addEvent appends an event, unless its time is unknown.
func (t *trace) addEvent(at time.Time, hop, event, detail string) {
	if !at.IsZero() {
		t.Events = append(t.Events, traceEvent{Time: at, Hop: hop, Event: event, Detail: detail})
	}
}

// managementClusterOf returns the management cluster that the adapters report, "" when they report none.
func managementClusterOf(reports []clm.AdapterStatus) string {
	for _, report := range reports {
		var data struct {
			Target  string `json:"target_cluster"`
			Cluster string `json:"management_cluster"`
		}
		if json.Unmarshal(report.Data, &data) == nil {
			if name := cmp.Or(data.Target, data.Cluster); name != "" {
				return name
			}
		}
	}
	return ""
}

// addHistory adds the changes of the resource and the reports of adapters from its history.
func (t *trace) addHistory(f traceFacts) {
	front := "Platform API"
	if t.Azure != "" {
		front = "Azure Resource Manager"
	}
	accepted, by := f.Resource.CreatedTime, f.Resource.CreatedBy
	for _, record := range slices.Backward(f.History) {
		actor := "by " + record.Principal
		if record.RequestID != "" {
			actor += ", request " + record.RequestID
		}
		switch {
		case record.Action == "update" && record.Spec == nil:
			t.addReports(record)
		case record.Action == "reconcile":
			t.addEvent(record.Time, hopSentinel, "asked to reconcile", strings.Trim(whatChanged(record)+" "+actor, " "))
		default:
			if record.Generation > 0 {
				actor = fmt.Sprintf("generation %d %s", record.Generation, actor)
			}
			t.addEvent(record.Time, hopFront, record.Action, actor)
			accepted, by = record.Time, record.Principal
		}
	}
	t.addHop(hopFront, hopDone, accepted, "%s, last change by %s", front, by)
}

// addReports adds the reports that a record of the history has.
func (t *trace) addReports(record clm.HistoryRecord) {
	var status struct {
		Conditions []clm.ResourceCondition `json:"conditions"`
		Reports    []clm.AdapterStatus     `json:"reports"`
	}
	if json.Unmarshal(record.Status, &status) != nil {
		return
	}
	for _, report := range status.Reports {
		t.addEvent(record.Time, hopAdapter+report.Adapter, "reported on generation "+fmt.Sprint(report.ObservedGeneration),
			goalText(report))
	}
	for _, c := range status.Conditions {
		if c.Type == "Reconciled" && c.LastTransitionTime.Equal(c.LastUpdatedTime) {
			t.addEvent(record.Time, hopCLM, "Reconciled="+c.Status, c.Message)
		}
	}
}

// goalText returns the condition of a report that decides: Finalized of a deletion, else Available.
func goalText(report clm.AdapterStatus) string {
	text := ""
	for _, c := range report.Conditions {
		if c.Type == string(cluster.ConditionAvailable) && text == "" || c.Type == "Finalized" && c.Status == "True" {
			text = conditionText(c)
		}
	}
	return text
}

// addCLM adds the states of the lifecycle manager and of the sentinel.
func (t *trace) addCLM(f traceFacts) {
	r := f.Resource
	reconciled := clmclient.Reconciled(r)
	switch {
	case r.DeletedTime != nil:
		t.addHop(hopCLM, hopWaits, *r.DeletedTime, "generation %d is being deleted by %s", r.Generation, r.DeletedBy)
	case reconciled == nil:
		t.addHop(hopCLM, hopDone, r.UpdatedTime, "generation %d; no adapter is required", r.Generation)
	case reconciled.Status == "True":
		t.addHop(hopCLM, hopDone, reconciled.LastTransitionTime, "generation %d is reconciled", r.Generation)
	default:
		t.addHop(hopCLM, hopWaits, reconciled.LastTransitionTime, "generation %d: %s", r.Generation, reconciled.Message)
	}
	var waits []string
	since := time.Time{}
	for _, a := range r.Status.Awaiting {
		waits = append(waits, a.Adapter)
		if since.IsZero() || a.Since.Before(since) {
			since = a.Since
		}
	}
	if len(waits) == 0 {
		t.addHop(hopSentinel, hopDone, time.Time{}, "it waits for no adapter")
		return
	}
	t.addHop(hopSentinel, hopWaits, since, "it sends the event again until these report success: %s",
		strings.Join(waits, ", "))
}

// addPlacement adds where the cluster is placed, or why it is not.
func (t *trace) addPlacement(f traceFacts) {
	switch p := f.Placement; {
	case p == nil:
		t.addHop(hopFleet, hopUnknown, time.Time{}, "the fleet has no placement of it")
	case p.ManagementCluster == "":
		t.addHop(hopFleet, hopWaits, p.DecidedTime, "%s", cmp.Or(p.Reason, p.Message))
	default:
		t.addHop(hopFleet, hopDone, p.DecidedTime, "on %s", p.ManagementCluster)
		t.addEvent(p.DecidedTime, hopFleet, "placed", p.ManagementCluster)
	}
}

// addAdapters adds the state of each adapter that has reported or that the cluster waits for.
func (t *trace) addAdapters(f traceFacts) {
	explained := explainResource(f.resourceFacts)
	awaited := map[string]bool{}
	for _, list := range [][]dependency{explained.Awaited, explained.Done} {
		for _, d := range list {
			if strings.Contains(d.From, " ") {
				continue // an owned resource
			}
			awaited[d.From] = len(awaited) < len(explained.Awaited)
			state := hopDone
			if awaited[d.From] {
				state = hopWaits
				if e := f.errorOf(d.From); e != nil {
					state = hopFailed
					d.What = e.Text
				}
			}
			t.addHop(hopAdapter+d.From, state, d.Since, "%s", d.What)
		}
	}
}

// errorOf returns the error in the report of an adapter about its own work, nil when the report has none.
func (f traceFacts) errorOf(adapter string) *lastError {
	for _, report := range f.Reports {
		if report.Adapter != adapter {
			continue
		}
		for _, c := range report.Conditions {
			if c.Type == "Health" && c.Status == "False" {
				return &lastError{From: adapter, Time: report.LastReportTime, Text: conditionText(c)}
			}
		}
	}
	return nil
}
