package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/clm"
	api "atoll.dev/api/maestro"
)

func TestI8ARebuildWaitsForWhoHasNotLooked(t *testing.T) {
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
		"looked": resource("looked", "True", 0), "not": resource("not", "True", 0), "worse": resource("worse", "True",
			0),
		"bad": resource("bad", "False", 0), "bad-looked": resource("bad-looked", "False", 0), "gone": doomed,
		"doomed":  doomed,
		"changed": resource("changed", "False", 0), "idle": resource("idle", "True", 0),
	}
	idle := resource("idle", "True", 0)
	idle.Status.Conditions = nil
	now := map[string]clm.Resource{
		"looked": resource("looked", "True", 1), "not": resource("not", "True", 0), "worse": resource("worse", "False",
			1),
		"bad": resource("bad", "False", 0), "bad-looked": resource("bad-looked", "False", 1), "doomed": doomed,
		"changed": changed, "idle": idle, "new": resource("new", "False", 0),
	}
	want := []rebuildWait{
		{Kind: "Cluster", ID: "bad", Name: "bad", What: "not all of its adapters have reported since; M"},
		{Kind: "Cluster", ID: "doomed", Name: "doomed", What: "its deletion is under way: M"},
		{Kind: "Cluster", ID: "not", Name: "not", What: "not all of its adapters have reported since"},
		{Kind: "Cluster", ID: "worse", Name: "worse", What: "it was reconciled before: M"},
	}
	if diff := cmp.Diff(want, awaitedResources(before, now)); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
}

func TestARebuildSaysWhatItCameTo(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var late, done rebuildReport
	late.Waiting = []rebuildWait{{Kind: "ManagementCluster", Name: "mc1",
		What: "its agent has not said yet what it holds"}}
	done.Done, done.Consumers.Known, done.Works.Present, done.Resources.Looked = true, 2, 7, 3
	done.Unknown = []api.UnknownWork{{ConsumerName: "mc1", ID: "w-1", Version: 3, FirstSeenAt: now.Add(-time.Minute)}}
	for _, c := range []struct {
		report rebuildReport
		want   string
	}{
		{late, `WAITING FOR         NAME   ID   WHY
ManagementCluster   mc1    -    its agent has not said yet what it holds
what one waits for: atoll clm why ID; agents: atoll mc list
`},
		{done, `restored: 2 consumers, 7 works; 3 resources were looked at

Agents hold 1 works that no source has ordered again; they stay applied:
CLUSTER   ID    GENERATION   KNOWN FOR   ADOPTING FOR
mc1       w-1   3            60s         
If a source still wants one:   atoll maestro unknown adopt mc1 w-1 --source SOURCE
If nobody does:                atoll maestro unknown delete mc1 w-1 --reason WHY
`},
	} {
		var b strings.Builder
		rebuildTable(&b, c.report, now)
		if got := b.String(); got != c.want {
			t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
		}
	}
}
