package fleet

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/cluster"
)

// The usage of a management cluster has the report of hosting that came with the last report on its agent, while the
// agent is connected. What a management cluster reports has no effect on placement, whatever it is.
func TestUsageHasTheReportOfHosting(t *testing.T) {
	b := start(t)
	id := b.mc("one", `{"capacity":{"planes":2}}`, nil)
	report := func(status, data string) string {
		t.Helper()
		_, err := b.Report(t.Context(), mcsPath, id, clm.AdapterStatusCreate{Adapter: "maestro", ObservedGeneration: 1,
			ObservedTime: time.Now(), Data: json.RawMessage(data),
			Conditions: []clm.ReportedCondition{{Type: "Available", Status: status}, {Type: "Applied", Status: "True"},
				{Type: "Health", Status: "True"}}})
		if err != nil {
			t.Fatal(err)
		}
		u, err := b.UsageOf(t.Context(), cluster.ManagementClusterID(id))
		if err != nil {
			t.Fatal(err)
		}
		hosting, err := json.Marshal(u.Hosting)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s %s", u.State, hosting)
	}
	checkEqual(t, "without a report", report("True", `{}`), "Ready null")
	checkEqual(t, "with a report", report("True", `{"hosting":{"warm_planes":2,"capacity":{"planes":3}}}`),
		`Ready {"capacity":{"planes":3},"warm_planes":2}`)
	checkEqual(t, "with a report that is none", report("True", `{"hosting":[1]}`), "Ready null")
	checkEqual(t, "the warm planes of a full management cluster", report("True", `{"hosting":{"warm_planes":9}}`),
		`Ready {"warm_planes":9}`)
	for _, name := range []string{"a", "b"} { // all the room is for clusters
		checkEqual(t, "the placement", b.place(b.cluster(name, `{}`)).ManagementCluster, "one")
	}
	checkEqual(t, "while the agent is lost", report("False", `{"hosting":{"warm_planes":9}}`), "Lost null")
}
