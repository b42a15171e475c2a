package recovery

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/clm"
)

func TestI8ARebuildWaitsForUnreconciledResources(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	resource := func(name, status string, reported time.Duration) clm.Resource {
		return clm.Resource{ID: name, Kind: "Cluster", Name: name, Generation: 1, Status: clm.ResourceStatus{
			Conditions: []clm.ResourceCondition{
				{Type: "Reconciled", Status: status, Message: "M", LastUpdatedTime: t0.Add(reported)}}}}
	}
	doomed := resource("doomed", "False", 0)
	doomed.DeletedTime = &t0
	changed := resource("changed", "False", 0)
	changed.Generation = 2
	before := map[string]clm.Resource{
		"looked": resource("looked", "True", 0), "not": resource("not", "True", 0),
		"worse": resource("worse", "True", 0), "bad": resource("bad", "False", 0),
		"bad-looked": resource("bad-looked", "False", 0), "gone": doomed, "doomed": doomed,
		"changed": resource("changed", "False", 0), "idle": resource("idle", "True", 0),
	}
	idle := resource("idle", "True", 0)
	idle.Status.Conditions = nil
	now := map[string]clm.Resource{
		"looked": resource("looked", "True", 1), "not": resource("not", "True", 0),
		"worse": resource("worse", "False", 1), "bad": resource("bad", "False", 0),
		"bad-looked": resource("bad-looked", "False", 1), "doomed": doomed,
		"changed": changed, "idle": idle, "new": resource("new", "False", 0),
	}
	want := []Wait{
		{Kind: "Cluster", ID: "bad", Name: "bad", What: "not all of its adapters have reported since; M"},
		{Kind: "Cluster", ID: "doomed", Name: "doomed", What: "its deletion is in progress: M"},
		{Kind: "Cluster", ID: "not", Name: "not", What: "not all of its adapters have reported since"},
		{Kind: "Cluster", ID: "worse", Name: "worse", What: "it was reconciled before: M"},
	}
	if diff := cmp.Diff(want, unreconciled(before, now)); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
}
