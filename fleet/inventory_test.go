package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// mcDoc returns a management cluster's document as CLM writes it. available is the status of the report on its agent
// at observed; "": there is no report.
func mcDoc(
	t testing.TB,
	name string,
	version int64,
	spec string,
	observed time.Time,
	available string,
) store.Document {
	t.Helper()
	wire, err := json.Marshal(clm.Resource{ID: name, Kind: "ManagementCluster", Name: name, Spec: json.RawMessage(
		spec)})
	if err != nil {
		t.Fatal(err)
	}
	status := `{"reports":[]}`
	if available != "" {
		status = fmt.Sprintf(
			`{"reports":[{"adapter":"maestro","last_report_time":%q,"conditions":[{"type":"Available","status":%q}]}]}`,
			observed.Format(time.RFC3339Nano), available)
	}
	return store.Document{Kind: kindMC, ID: name, Name: name, Version: version, Wire: wire, Status: json.RawMessage(
		status)}
}

// placementDoc returns a placement's document; with mc "" the placement is Waiting.
func placementDoc(t testing.TB, owner cluster.ID, version int64, age time.Duration, mc string,
	d Demand) store.Document {
	t.Helper()
	p := placement{placementRequest{ClusterID: owner, Demand: d}, placementDecision{State: api.Waiting,
		ManagementCluster: cluster.ManagementCluster(mc), ManagementClusterID: cluster.ManagementClusterID(mc)}}
	if mc != "" {
		p.State = api.Placed
	}
	doc := store.Document{Kind: KindPlacement, ID: placementID(owner), Version: version, CreatedAt: noon.Add(-age)}
	if err := p.encodeInto(&doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func (inv *inventory) mustApply(t testing.TB, d store.Document) bool {
	return inv.mustApplyAt(t, d, noon)
}

func (inv *inventory) mustApplyAt(t testing.TB, d store.Document, now time.Time) bool {
	t.Helper()
	mayHaveRoom, err := inv.apply(d, now)
	if err != nil {
		t.Fatal(err)
	}
	return mayHaveRoom
}

// TestInventory runs the commands of testdata/inventory.txt: documents of the feed, and plans of requests.
func TestInventory(t *testing.T) {
	b := newInventory()
	now := noon
	versions := map[string]int64{}
	datadriven.RunTest(t, "testdata/inventory.txt", func(t *testing.T, d *datadriven.TestData) string {
		next := func(name string) int64 { versions[name]++; return versions[name] }
		arg := func(name, def string) string {
			if d.HasArg(name) {
				d.ScanArgs(t, name, &def)
			}
			return def
		}
		name := ""
		if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
			name = d.CmdArgs[0].Key
		}
		switch d.Cmd {
		case "mc": // NAME [planes=N] [state=S] [available=A]
			spec := fmt.Sprintf(`{"state":%q,"capacity":{"planes":%s}}`, arg("state", "Ready"), arg("planes", "1"))
			return fmt.Sprintln(
				"may have room:",
				b.mustApplyAt(t, mcDoc(t, name, next(name), spec, now, arg("available", "True")),
					now),
			)
		case "waits": // NAME age=SECONDS [planes=N] [named=MC]
			var age, planes int64
			fmt.Sscan(arg("age", "0"), &age)
			fmt.Sscan(arg("planes", "1"), &planes)
			return fmt.Sprintln(
				"may have room:",
				b.mustApply(t, placementDoc(t, cluster.ID(name), next(name), time.Duration(age)*time.Second,
					"",
					Demand{Named: cluster.ManagementCluster(arg("named", "")), Amounts: Amounts{"planes": planes}})),
			)
		case "placed": // NAME on=MC
			return fmt.Sprintln("may have room:", b.mustApply(t, placementDoc(t, cluster.ID(name), next(name), 0, arg("on", ""),
				Demand{Amounts: Amounts{"planes": 1}})))
		case "released": // NAME
			doc := placementDoc(t, cluster.ID(name), next(name), 0, "", Demand{})
			doc.Removed = true
			return fmt.Sprintln("may have room:", b.mustApply(t, doc))
		case "late": // NAME: an older version, as a concurrent list may return it
			return fmt.Sprintln(
				"may have room:",
				b.mustApply(t, placementDoc(t, cluster.ID(name), versions[name]-1, 0, "", Demand{})),
			)
		case "pass": // SECONDS
			var seconds int64
			fmt.Sscan(name, &seconds)
			now = now.Add(time.Duration(seconds) * time.Second)
			return ""
		case "ask":
			var requested []string
			for _, w := range b.planRequests(now) {
				requested = append(requested, string(w.cluster))
				b.recordRequest(w, now)
			}
			return fmt.Sprintf("%s (%d wait)\n", strings.Join(requested, " "), b.waiting)
		}
		return "unknown command " + d.Cmd
	})
}

// For any inventory without requests in progress: all planned clusters have room together, no older cluster is left out
// for a younger one with an equal demand, and no cluster that has room besides them is left out.
func TestAPlanFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb := &testing.T{}
		b := newInventory()
		for i := range rapid.IntRange(0, 4).Draw(t, "mcs") {
			spec := fmt.Sprintf(`{"capacity":{"planes":%d}}`, rapid.IntRange(0, 5).Draw(t, "planes"))
			if _, err := b.apply(mcDoc(tb, fmt.Sprintf("m%d", i), 1, spec, noon, rapid.SampledFrom(
				[]string{"True", "True", "False", ""}).Draw(t, "available")), noon); err != nil {
				t.Fatal(err)
			}
		}
		n := rapid.IntRange(0, 30).Draw(t, "clusters")
		for i := range n {
			d := Demand{Amounts: Amounts{"planes": rapid.Int64Range(1, 2).Draw(t, "demand")}}
			if _, err := b.apply(
				placementDoc(tb, cluster.ID(fmt.Sprintf("c%02d", i)), 1, time.Duration(n-i)*time.Second, "", d),
				noon,
			); err != nil {
				t.Fatal(err)
			}
		}
		plan := b.planRequests(noon)
		fleet := b.sortedHosts(noon)
		last := map[string]string{}
		for _, w := range plan {
			i := choose(w.demand, fleet)
			if i < 0 {
				t.Fatalf("the plan has %s, and there is no room for it", w.cluster)
			}
			fleet[i].addInPlace(w.demand.Amounts)
			last[w.demandKey] = string(w.cluster)
		}
		for _, w := range b.waitingOldestFirst() {
			planned := slices.ContainsFunc(plan, func(a entryWithID) bool { return a.id == w.id })
			if !planned && w.cluster < cluster.ID(last[w.demandKey]) {
				t.Fatalf("the plan has the younger %[2]s and not %[1]s", w.cluster, last[w.demandKey])
			}
			if !planned && choose(w.demand, fleet) >= 0 {
				t.Fatalf("there is room for %s, and the plan does not have it", w.cluster)
			}
		}
	})
}

// With 10,000 waiting clusters a plan has as many as there is room for, and at most maxRequests.
func TestAPlanFor10000(t *testing.T) {
	b := fullInventory(t, 10_000)
	if plan := b.planRequests(noon); len(plan) != 0 {
		t.Fatalf("the plan has %d clusters, and there is no room", len(plan))
	}
	b.mustApply(t, mcDoc(t, "m000", 2, `{"capacity":{"planes":107}}`, noon, "True"))
	plan := b.planRequests(noon)
	if len(plan) != 7 || plan[0].cluster != "c00000" || plan[6].cluster != "c00006" {
		t.Fatalf("with room for 7 the plan has %d clusters", len(plan))
	}
	b.mustApply(t, mcDoc(t, "m000", 3, `{}`, noon, "True"))
	if plan = b.planRequests(noon); len(plan) != maxRequests {
		t.Fatalf("with room for all the plan has %d clusters", len(plan))
	}
}

// fullInventory returns an inventory with a hundred full management clusters and n waiting clusters.
func fullInventory(t testing.TB, n int) *inventory {
	b := newInventory()
	one := Demand{Amounts: Amounts{"planes": 1, "memory_mib": 350}}
	for i := range 100 {
		mc := fmt.Sprintf("m%03d", i)
		b.mustApply(t, mcDoc(t, mc, 1, `{"capacity":{"planes":100}}`, noon, "True"))
		for j := range 100 {
			b.mustApply(t, placementDoc(t, cluster.ID(fmt.Sprintf("p%03d-%03d", i, j)), 1, 0, mc, one))
		}
	}
	for i := range n {
		b.mustApply(t, placementDoc(t, cluster.ID(fmt.Sprintf("c%05d", i)), 1, time.Duration(n-i)*time.Second, "", one))
	}
	return b
}

// BenchmarkPlan measures one plan with 100 management clusters, 10,000 placed and 10,000 waiting clusters.
func BenchmarkPlan(b *testing.B) {
	inv := fullInventory(b, 10_000)
	for name, spec := range map[string]string{"none": `{"capacity":{"planes":100}}`,
		"one": `{"capacity":{"planes":101}}`, "all": `{}`} {
		inv.mustApply(b, mcDoc(b, "m050", 2+int64(len(name)), spec, noon, "True"))
		b.Run("room="+name, func(b *testing.B) {
			for b.Loop() {
				inv.planRequests(noon)
			}
		})
	}
}

// lostChanges returns each cluster once for the loss of its management cluster and once for the end of the loss,
// whatever the order of the changes.
func TestLostChangesReturnsEachClusterOnceForALossAndOnceForItsEnd(t *testing.T) {
	names := func(ws []entryWithID) (s string) {
		for _, w := range ws {
			s += string(w.cluster) + " "
		}
		return s
	}
	b := newInventory()
	check := func(lost, connected string) {
		t.Helper()
		g, h := b.lostChanges()
		if names(g) != lost || names(h) != connected {
			t.Errorf("lost: %q, want %q; back: %q, want %q", names(g), lost, names(h), connected)
		}
	}
	b.mustApply(t, mcDoc(t, "m", 3, `{}`, noon, "False")) // the first document of it
	b.mustApply(t, placementDoc(t, "a", 1, 0, "m", Demand{}))
	b.mustApply(t, placementDoc(t, "w", 1, 0, "", Demand{}))
	check("a ", "")
	b.mustApply(t, mcDoc(t, "m", 4, `{"state":"Cordoned"}`, noon, "False"))
	check("", "")
	b.mustApply(t, placementDoc(t, "b", 1, 0, "m", Demand{})) // after the loss
	check("b ", "")
	doc := placementDoc(t, "a", 2, 0, "m", Demand{})
	doc.Removed = true
	b.mustApply(t, doc)
	b.mustApply(t, mcDoc(t, "m", 5, `{}`, noon, "True"))
	check("", "b ")
	b.mustApply(t, mcDoc(t, "m", 6, `{}`, noon, "False"))
	b.mustApply(t, mcDoc(t, "m", 7, `{}`, noon, "True"))
	check("", "")
}
