package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/clm"
	"atoll.dev/api/fleet"
	"atoll.dev/api/platform"
)

var traceStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func traceAt(seconds int) time.Time { return traceStart.Add(time.Duration(seconds) * time.Second) }

// tracedCluster returns the facts about a cluster that is ready.
func tracedCluster(t *testing.T) traceFacts {
	t.Helper()
	at := func(seconds int) *time.Time { v := traceAt(seconds); return &v }
	f := traceFacts{resourceFacts: resourceFacts{Now: traceAt(100)}}
	f.Resource = clm.Resource{ID: "c1", Kind: "Cluster", Name: "demo", Generation: 1, CreatedTime: traceAt(0),
		CreatedBy: "ann", Tenancy: map[string]string{"account": "123456789012"},
		Spec: json.RawMessage(`{"properties":{"azureResourceId":"/subscriptions/s/x"}}`),
		Status: clm.ResourceStatus{Conditions: []clm.ResourceCondition{{Type: "Reconciled", Status: "True",
			LastTransitionTime: traceAt(9)}}}}
	f.Reports = []clm.AdapterStatus{{Adapter: "hosted-cluster", ObservedGeneration: 1, LastReportTime: traceAt(9),
		Data: json.RawMessage(`{"target_cluster":"management-01"}`), Conditions: []clm.AdapterCondition{{Type: "Available",
			Status: "True", LastTransitionTime: traceAt(9)}}}}
	f.History = []clm.HistoryRecord{ // the latest first
		{Action: "update", Time: traceAt(9), Status: json.RawMessage(`{"conditions":[],"reports":[{"adapter":` +
			`"hosted-cluster","observed_generation":1,"conditions":[{"type":"Available","status":"True"}]}]}`)},
		{Action: "create", Time: traceAt(0), Generation: 1, Principal: "ann", RequestID: "r1", Spec: json.RawMessage(`{}`)}}
	f.Placement = &fleet.Placement{ManagementCluster: "management-01", DecidedTime: traceAt(1)}
	feedback := `{"type":"Available","status":"True","lastTransitionTime":"2026-01-01T00:00:08Z"}`
	etcd := `{"type":"EtcdAvailable","status":"True","lastTransitionTime":"2026-01-01T00:00:05Z"}`
	raw := "[" + feedback + "," + etcd + "]"
	host := "hc-1.example"
	w := platform.Work{Name: "work-c1", ClusterID: "management-01", Generation: 1, UpdatedAt: traceAt(2),
		Delivery: &platform.Delivery{AcceptedAt: at(2), SentAt: at(2), ReceivedAt: at(3), AppliedAt: at(4), Attempts: 1,
			AcknowledgedGeneration: 1}}
	w.Status.ResourceStatus.Manifests = []workv1.ManifestCondition{{
		ResourceMeta: workv1.ManifestResourceMeta{Kind: "HostedCluster", Namespace: "clusters-c1", Name: "hc-1"},
		StatusFeedbacks: workv1.StatusFeedbackResult{Values: []workv1.FeedbackValue{
			{Name: "conditions", Value: workv1.FieldValue{Type: workv1.JsonRaw, JsonRaw: &raw}},
			{Name: "controlPlaneEndpoint", Value: workv1.FieldValue{Type: workv1.String, String: &host}}}}}}
	f.Works = []platform.Work{w}
	return f
}

// TestATraceNamesTheHopThatAClusterWaitsFor changes the facts of a ready cluster hop by hop.
func TestATraceNamesTheHopThatAClusterWaitsFor(t *testing.T) {
	waits := func(f *traceFacts) {
		f.Resource.Status.Conditions[0].Status = "False"
		f.Resource.Status.Awaiting = []clm.Awaited{{Adapter: "hosted-cluster", Since: traceAt(2)}}
		f.Reports[0].Conditions[0].Status = "False"
	}
	since := traceAt(2)
	for name, c := range map[string]struct {
		change func(*traceFacts)
		want   string // the hop, and a text of its line
		detail string
	}{
		"ready": {change: func(*traceFacts) {}},
		"no room": {func(f *traceFacts) {
			waits(f)
			f.Placement = &fleet.Placement{Reason: "no room"}
			f.Reports, f.Works = nil, nil
		}, hopFleet, "no room"},
		"an adapter": {func(f *traceFacts) {
			waits(f)
			f.Works = nil
		}, hopAdapter + "hosted-cluster", "Available=False"},
		"an adapter that fails": {func(f *traceFacts) {
			waits(f)
			f.Reports[0].Conditions = append(f.Reports[0].Conditions, clm.AdapterCondition{Type: "Health", Status: "False",
				Message: "it broke"})
		}, hopAdapter + "hosted-cluster", "it broke"},
		"an agent that does not answer": {func(f *traceFacts) {
			f.Works[0].Delivery.UnansweredSince = &since
		}, hopAgent, "has not answered"},
		"an agent with an old generation": {func(f *traceFacts) {
			f.Works[0].Generation = 2
		}, hopAgent, "generation 1 of 2"},
		"a work that is not sent": {func(f *traceFacts) {
			f.Works[0].Delivery = &platform.Delivery{AcceptedAt: &since}
		}, hopMaestro, "is not sent"},
		"a HostedCluster without conditions": {func(f *traceFacts) {
			f.Works[0].Status.ResourceStatus.Manifests[0].StatusFeedbacks.Values = nil
		}, hopHosted, "no condition yet"},
		"a Maestro that does not answer": {func(f *traceFacts) {
			f.Works, f.WorksError = nil, errors.New("away")
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := tracedCluster(t)
			c.change(&f)
			got := traceCluster(f)
			if got.WaitsAt != c.want {
				t.Fatalf("it waits at %q, not %q: %+v", got.WaitsAt, c.want, got.Hops)
			}
			var out strings.Builder
			traceTables(&out, got, f.Now)
			for line := range strings.Lines(out.String()) {
				if strings.HasPrefix(line, ">") && (!strings.Contains(line, c.want) || !strings.Contains(line, c.detail)) {
					t.Errorf("the marked line is %s", line)
				}
			}
			if marks := strings.Count(out.String(), "\n>"); (marks > 0) != (c.want != "") {
				t.Errorf("%d marks:\n%s", marks, out.String())
			}
		})
	}
}

// TestATraceHasTheEventsOfAllHopsInOneOrder compares the events of a ready cluster.
func TestATraceHasTheEventsOfAllHopsInOneOrder(t *testing.T) {
	got := traceCluster(tracedCluster(t))
	var events []string
	for _, e := range got.Events {
		events = append(events, fmt.Sprintf("%d %s: %s", int(e.Time.Sub(traceStart).Seconds()), e.Hop, e.Event))
	}
	want := "0 front: create|1 placement: placed|2 maestro: accepted|2 maestro: sent|3 agent: received|4 agent: applied|" +
		"5 plane: EtcdAvailable=True|8 hosted cluster: Available=True|9 adapter hosted-cluster: reported on generation 1"
	if strings.Join(events, "|") != want {
		t.Errorf("the events are %s", strings.Join(events, "|"))
	}
	if got.ManagementCluster != "management-01" || got.Azure != "/subscriptions/s/x" || got.Account != "123456789012" {
		t.Errorf("%+v", got)
	}
}
