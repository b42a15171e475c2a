package progress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"atoll.dev/api/clm"
	"atoll.dev/cluster"
)

// subject is a cluster, or a node pool, with its history. Each command takes
// 100 ms.
type subject struct {
	resource clm.Resource
	history  History
}

type world struct {
	now      time.Time
	seq      int64
	cluster  subject
	pools    []*subject
	required map[*subject][]string
	previous []Event
}

// The files have the reports of adapters, and the status and events that follow:
//
//	create | update | delete | remove [pool=NAME]
//	report adapter=NAME [pool=NAME] [generation=N] CONDITION=STATUS[:reason[:message]] ...
//	{data}
//	status [pool=NAME] [hidden] | events [hidden]
func TestProgress(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := &world{now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), required: map[*subject][]string{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.now = w.now.Add(100 * time.Millisecond)
			w.seq++
			of, visibility := &w.cluster, ShowPlacement
			if d.HasArg("hidden") {
				visibility = HidePlacement
			}
			if d.HasArg("pool") {
				of = w.pool(arg(d, "pool"))
			}
			switch d.Cmd {
			case "create", "update", "delete", "remove", "force-delete":
				w.change(of, d.Cmd)
			case "report":
				w.report(t, of, d)
			case "status":
				return w.status(of, visibility)
			case "events":
				return w.events(visibility)
			default:
				d.Fatalf(t, "there is no command %s", d.Cmd)
			}
			w.expectPrefix(t)
			return ""
		})
	})
}

// expectPrefix checks that a new record changes no earlier event.
func (w *world) expectPrefix(t *testing.T) {
	t.Helper()
	now := w.all(ShowPlacement)
	for i, before := range w.previous {
		if i >= len(now) || now[i] != before {
			t.Fatalf("event %d was %+v, and is not any more:\n%s", i, before, w.events(ShowPlacement))
		}
	}
	w.previous = now
}

func arg(d *datadriven.TestData, name string) string {
	for _, a := range d.CmdArgs {
		if a.Key == name {
			return strings.Join(a.Vals, ",")
		}
	}
	return ""
}

func (w *world) pool(name string) *subject {
	for _, p := range w.pools {
		if p.history.Name == name {
			return p
		}
	}
	p := &subject{history: History{ID: "pool-" + name, Name: name}}
	w.pools = append(w.pools, p)
	return p
}

func (w *world) record(of *subject, action string, spec json.RawMessage) {
	r := clm.HistoryRecord{Seq: w.seq, Time: w.now, Action: action, Generation: of.resource.Generation,
		Principal: "arn:me", Spec: spec}
	r.Status, _ = json.Marshal(map[string]any{"reports": of.resource.Statuses})
	of.history.Records = append(of.history.Records, r)
}

func (w *world) change(of *subject, action string) {
	r := &of.resource
	switch action {
	case "create":
		r.ID, r.CreatedTime = "c1", w.now
		of.history.ID = cmp.Or(of.history.ID, "c1")
		w.required[of] = []string{"placement", "hosted-cluster"}
		if of != &w.cluster {
			w.required[of] = []string{"node-pool"}
		}
	case "delete":
		r.DeletedTime = &w.now
	}
	var spec json.RawMessage
	if action != "remove" {
		r.Generation++
		r.UpdatedTime = w.now
		spec = json.RawMessage(`{}`)
	}
	w.record(of, action, spec)
}

func (w *world) report(t *testing.T, of *subject, d *datadriven.TestData) {
	s := clm.AdapterStatus{Adapter: arg(d, "adapter"), ObservedGeneration: of.resource.Generation,
		Data: json.RawMessage(d.Input), LastReportTime: w.now}
	for _, a := range d.CmdArgs {
		switch value := strings.Join(a.Vals, ","); a.Key {
		case "adapter", "pool", "hidden":
		case "generation":
			n, err := strconv.Atoi(value)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.ObservedGeneration = int32(n)
		default:
			parts := strings.SplitN(value+"::", ":", 3)
			s.Conditions = append(s.Conditions, clm.AdapterCondition{
				Type: a.Key, Status: parts[0], Reason: parts[1], Message: strings.ReplaceAll(
					strings.TrimRight(parts[2], ":"), "_", " "), LastTransitionTime: w.now,
			})
		}
	}
	kept := []clm.AdapterStatus{s}
	for _, other := range of.resource.Statuses {
		if other.Adapter != s.Adapter {
			kept = append(kept, other)
		}
	}
	of.resource.Statuses = kept
	w.record(of, "update", nil)
}

// awaiting returns the required adapters that have not reported yet.
func (w *world) awaiting(of *subject) (all []clm.Awaited) {
	wanted := "Available"
	if of.resource.DeletedTime != nil {
		wanted = "Finalized"
	}
	for _, name := range w.required[of] {
		report, _ := cluster.Reports(of.resource.Statuses).Find(cluster.Adapter(name))
		if report.ObservedGeneration != of.resource.Generation ||
			cluster.Condition(report, cluster.ConditionType(wanted)).Status != "True" {
			all = append(all, clm.Awaited{Adapter: name})
		}
	}
	return all
}

func (w *world) status(of *subject, visibility Visibility) string {
	of.resource.Status.Awaiting = w.awaiting(of)
	if of != &w.cluster {
		s := OfNodePool(of.resource, visibility)
		return fmt.Sprintf("%s %s: %s\nobserved %d, replicas %d, ready %d, version %q\n", s.Phase, s.Reason, s.Message,
			s.ObservedGeneration, s.Ready, s.Ready, s.Version)
	}
	s := OfCluster(of.resource, visibility)
	out := fmt.Sprintf("%s %s: %s\nobserved %d, version %q, power %q", s.Phase, s.Reason, s.Message,
		s.ObservedGeneration, s.Version, s.Power)
	if s.Endpoint != nil {
		out += fmt.Sprintf(", at %s:%d", s.Endpoint.Host, s.Endpoint.Port)
	}
	if s.ManagementCluster != "" {
		out += ", on " + string(s.ManagementCluster)
	}
	return out + "\n"
}

func (w *world) all(visibility Visibility) []Event {
	var pools []History
	for _, p := range w.pools {
		pools = append(pools, p.history)
	}
	return Events(visibility, w.cluster.history, pools...)
}

func (w *world) events(visibility Visibility) string {
	var out strings.Builder
	for _, e := range w.all(visibility) {
		fmt.Fprintf(
			&out,
			"%5d %-7s %-13s %s: %s\n",
			e.Since.Milliseconds(),
			e.Type,
			cmp.Or(string(e.Stage), "-"),
			e.Reason,
			e.Message,
		)
	}
	return out.String()
}
