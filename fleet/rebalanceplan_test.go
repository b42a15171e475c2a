package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// reportPlane reports on a cluster's control plane, as the adapter hosted-cluster does.
func (b *testRegion) reportPlane(id, available, data string) {
	b.t.Helper()
	accepted, err := b.Report(b.t.Context(), clustersPlural, id, clm.AdapterStatusCreate{
		Adapter: string(cluster.AdapterHostedCluster), ObservedGeneration: 1, ObservedTime: time.Now(),
		Conditions: []clm.ReportedCondition{{Type: "Available", Status: available}, {Type: "Applied", Status: "True"},
			{Type: "Health", Status: "True"}}, Data: json.RawMessage(data)})
	if err != nil || !accepted {
		b.t.Fatalf("CLM did not accept the report: %v", err)
	}
}

// plan returns a plan of a rebalancing as "CLUSTER FROM>TO", with clusters by their names, and the reasons of the
// clusters that stay.
func (b *testRegion) plan(names map[string]string, limit int, except ...cluster.ID) (text string) {
	b.t.Helper()
	p, err := b.PlanRebalance(b.t.Context(), limit, except)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, m := range p.Moves {
		text += fmt.Sprintf("%s %s>%s; ", names[m.ClusterID], m.From, m.To)
	}
	for _, l := range p.Staying {
		text += fmt.Sprintf("%s on %s: %s; ", names[l.ClusterID], l.ManagementCluster, l.Reason)
	}
	for _, u := range p.ManagementClusters {
		text += fmt.Sprintf("%s %d>%d; ", u.Name, u.Used/10_000, u.UsedAfter/10_000)
	}
	return text + fmt.Sprint(p.Moving, " moving")
}

// An operator empties a full management cluster into a new one: with the moves of each plan carried out, the next plan
// counts them while they are under way and continues when they have ended, and the last one has none.
func TestARebalancingMovesClustersUntilTheRegionIsEven(t *testing.T) {
	b := start(t)
	b.mc("one", `{"capacity":{"planes":10}}`, nil)
	names, ids := map[string]string{}, []string{}
	for i := range 6 {
		id := b.cluster(fmt.Sprint("c-", i), `{}`)
		b.place(id)
		b.reportPlane(id, "True", `{"power":"Awake","backups":{"from":"2026-11-29T10:00:00Z"}}`)
		ids = append(ids, id)
	}
	slices.Sort(ids) // of equal clusters the first by id moves
	for i, id := range ids {
		names[id] = fmt.Sprint("c", i)
	}
	b.mc("two", `{"capacity":{"planes":10}}`, nil)
	b.eventually("the plan has the moves", func() bool {
		return b.plan(names, 100) == "c0 one>two; c1 one>two; c2 one>two; one 60>30; two 0>30; 0 moving"
	})
	checkEqual(t, "limited", b.plan(names, 1), "c0 one>two; one 60>50; two 0>10; 0 moving")
	checkEqual(t, "without one", b.plan(names, 1, cluster.ID(ids[0])), "c1 one>two; one 60>50; two 0>10; 0 moving")

	b.move(ids[0], api.MoveOrder{Step: api.Start, To: "two", ID: "m"})
	checkEqual(t, "while it moves", b.plan(names, 100), "c1 one>two; c2 one>two; one 50>30; two 10>30; 1 moving")
	b.reportPlane(ids[1], "True", `{"backups":{"from":"2026-11-29T10:00:00Z"},
		"upgrade":{"from":"1","to":"2","phase":"Soaking"}}`)
	checkEqual(t, "one that soaks", b.plan(names, 100),
		"c2 one>two; c3 one>two; c1 on one: an upgrade is Soaking; one 50>30; two 10>30; 1 moving")
	b.move(ids[0], api.MoveOrder{Step: api.Arrived, ID: "m"})
	for _, id := range ids[2:4] {
		b.move(id, api.MoveOrder{Step: api.Start, To: "two", ID: "m"})
		b.move(id, api.MoveOrder{Step: api.Arrived, ID: "m"})
	}
	checkEqual(t, "the end", b.plan(names, 100), "one 30>30; two 30>30; 0 moving")

	// The first one grows. Clusters that have moved do not go back while their old kubeconfigs are forwarded.
	larger := []byte(`{"spec":{"capacity":{"planes":40}}}`)
	if _, err := b.Merge(t.Context(), mcsPath, b.mcID("one"), larger, ""); err != nil {
		t.Fatal(err)
	}
	b.eventually("no cluster goes back", func() bool {
		p := b.plan(names, 100)
		return strings.Contains(p, "its last move is Forwarding") && strings.Contains(p, "one 7>7; two 30>30")
	})
	_, err := b.as("tenant").PlanRebalance(t.Context(), 1, nil)
	checkError(t, "a tenant", err, 403, codeForbidden)
	_, err = b.PlanRebalance(t.Context(), 101, nil)
	checkError(t, "too many", err, 400, codeInvalid)
	_, err = b.PlanRebalance(t.Context(), 1, make([]cluster.ID, 101))
	checkError(t, "too many that stay", err, 400, codeInvalid)
}

// mcID returns the id of a management cluster.
func (b *testRegion) mcID(name string) string {
	b.t.Helper()
	r, err := b.Named(b.t.Context(), mcsPath, name)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.ID
}

func TestAClusterWithAnOpenOrderStays(t *testing.T) {
	const release = `"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.3"}}`
	for _, c := range []struct{ spec, available, data, want string }{
		{`{}`, "True", `{"power":"Awake"}`, ""},
		{`{}`, "True", `{}`, ""},
		{`{}`, "False", `{}`, "its control plane is not available"},
		{`{}`, "Unknown", `{}`, "its control plane is not available"},
		{`{` + release + `}`, "True", `{"version":"1.36.3"}`, ""},
		{`{` + release + `}`, "True", `{"version":"1.35.0"}`, "an upgrade begins"},
		{`{` + release + `}`, "True", `{"version":"1.35.0","upgrade":{"to":"1.36.3","phase":"Upgrading"}}`,
			"an upgrade is Upgrading"},
		{`{` + release + `}`, "True", `{"version":"1.36.3","upgrade":{"to":"1.36.3","phase":"Soaking"}}`,
			"an upgrade is Soaking"},
		{`{` + release + `}`, "True", `{"version":"1.36.3","upgrade":{"to":"1.36.3","phase":"RollingBack"}}`,
			"an upgrade is RollingBack"},
		{`{` + release + `}`, "True", `{"version":"1.36.3","upgrade":{"to":"1.36.3","phase":"Completed"}}`, ""},
		{`{` + release + `}`, "True", `{"version":"1.35.0","upgrade":{"to":"1.36.3","phase":"RolledBack"}}`, ""},
		{`{"restore":{"id":"r"}}`, "True", `{}`, "a restore is under way"},
		{`{"restore":{"id":"r"}}`, "True", `{"restore":{"id":"q","phase":"Completed"}}`, "a restore is under way"},
		{`{"restore":{"id":"r"}}`, "True", `{"restore":{"id":"r","phase":"Restoring"}}`, "a restore is under way"},
		{`{"restore":{"id":"r"}}`, "True", `{"restore":{"id":"r","phase":"Failed"}}`, ""},
		{`{"hibernated":true}`, "True", `{"power":"Asleep"}`, ""},
		{`{"hibernated":true}`, "True", `{"power":"Awake"}`, "it changes between hibernation and use"},
		{`{"hibernated":true}`, "True", `{"power":"Waking"}`, "it changes between hibernation and use"},
		{`{}`, "True", `{"power":"Asleep"}`, "it changes between hibernation and use"},
		{`{}`, "True", `{"rotations":{"issuer":{"id":"r","phase":"Preparing"}}}`, "a rotation of issuer is Preparing"},
		{`{}`, "True", `{"rotations":{"issuer":{"id":"r","phase":"Prepared"}}}`, ""},
	} {
		data := strings.Replace(c.data, "{", `{"backups":{"from":"2026-11-29T10:00:00Z"},`, 1)
		data = strings.Replace(data, ",}", "}", 1)
		d := store.Document{ID: "c", Wire: fmt.Appendf(nil, `{"generation":3,"spec":%s}`, c.spec),
			Status: fmt.Appendf(nil, `{"reports":[{"adapter":"hosted-cluster","observed_generation":3,"data":%s,
				"conditions":[{"type":"Available","status":%q}]}]}`, data, c.available)}
		if got, err := reasonToStay(d); err != nil || got != c.want {
			t.Errorf("spec %s, Available %s, report %s: %q, %v; want %q", c.spec, c.available, c.data, got, err, c.want)
		}
	}
	for status, want := range map[string]string{
		`{}`: "its last change is not applied yet",
		`{"reports":[{"adapter":"hosted-cluster","observed_generation":2}]}`: "its last change is not applied yet",
		`{"reports":[{"adapter":"hosted-cluster","observed_generation":3,"data":{"backups":{}},
			"conditions":[{"type":"Available","status":"True"}]}]}`: "it has no backup, and a move needs one: " +
			"atoll hosting --backups, atoll up --backups",
	} {
		d := store.Document{ID: "c", Wire: []byte(`{"generation":3,"spec":{}}`), Status: []byte(status)}
		if got, err := reasonToStay(d); err != nil || got != want {
			t.Errorf("status %s: %q, %v", status, got, err)
		}
	}
	now := time.Now()
	if got, err := reasonToStay(store.Document{ID: "c", Wire: []byte(`{}`), Status: []byte(`{}`), DeletedAt: &now}); got !=
		"it is being deleted" || err != nil {
		t.Errorf("a deleted cluster: %q, %v", got, err)
	}
}
