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

// mcDoc is a management cluster's document as CLM writes it.
func mcDoc(t testing.TB, name string, version int64, spec string, heard time.Time, available string) store.Document {
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
			heard.Format(time.RFC3339Nano), available)
	}
	return store.Document{Kind: kindMC, ID: name, Name: name, Version: version, Wire: wire, Status: json.RawMessage(
		status)}
}

// placementDoc is a placement's document; mc "" waits.
func placementDoc(t testing.TB, owner cluster.ID, version int64, age time.Duration, mc string,
	d Demand) store.Document {
	t.Helper()
	p := placement{placementWanted{ClusterID: owner, Demand: d}, placementMade{State: api.Waiting,
		ManagementCluster: cluster.ManagementCluster(mc), ManagementClusterID: cluster.ManagementClusterID(mc)}}
	if mc != "" {
		p.State = api.Placed
	}
	doc := store.Document{Kind: KindPlacement, ID: placementID(owner), Version: version, CreatedAt: noon.Add(-age)}
	if err := p.into(&doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func (b *board) show(t testing.TB, d store.Document) bool { return b.showAt(t, d, noon) }

func (b *board) showAt(t testing.TB, d store.Document, now time.Time) bool {
	t.Helper()
	news, err := b.apply(d, now)
	if err != nil {
		t.Fatal(err)
	}
	return news
}

// The board by a script: what the feed brings, and for whom work is asked then.
func TestBoard(t *testing.T) {
	b := newBoard()
	now := noon
	versions := map[string]int64{}
	datadriven.RunTest(t, "testdata/board.txt", func(t *testing.T, d *datadriven.TestData) string {
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
			return fmt.Sprintln("news:", b.showAt(t, mcDoc(t, name, next(name), spec, now, arg("available", "True")),
				now))
		case "waits": // NAME age=SECONDS [planes=N] [named=MC]
			var age, planes int64
			fmt.Sscan(arg("age", "0"), &age)
			fmt.Sscan(arg("planes", "1"), &planes)
			return fmt.Sprintln("news:", b.show(t, placementDoc(t, cluster.ID(name), next(name), time.Duration(age)*time.Second,
				"",
				Demand{Named: cluster.ManagementCluster(arg("named", "")), Amounts: Amounts{"planes": planes}})))
		case "placed": // NAME on=MC
			return fmt.Sprintln("news:", b.show(t, placementDoc(t, cluster.ID(name), next(name), 0, arg("on", ""),
				Demand{Amounts: Amounts{"planes": 1}})))
		case "released": // NAME
			doc := placementDoc(t, cluster.ID(name), next(name), 0, "", Demand{})
			doc.Removed = true
			return fmt.Sprintln("news:", b.show(t, doc))
		case "late": // NAME: a state from before, as a read that overlaps the feed may bring it
			return fmt.Sprintln("news:", b.show(t, placementDoc(t, cluster.ID(name), versions[name]-1, 0, "", Demand{})))
		case "pass": // SECONDS
			var seconds int64
			fmt.Sscan(name, &seconds)
			now = now.Add(time.Duration(seconds) * time.Second)
			return ""
		case "ask":
			var asked []string
			for _, w := range b.plan(now) {
				asked = append(asked, string(w.cluster))
				b.noteAsk(w, now)
			}
			return fmt.Sprintf("%s (%d wait)\n", strings.Join(asked, " "), b.waiting)
		}
		return "what is " + d.Cmd
	})
}

// Whatever there is: those who are asked have room side by side, none is passed
// over for a younger one that demands the same, and once nobody is under way
// somebody is asked whenever somebody fits.
func TestAPlanFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb := &testing.T{}
		b := newBoard()
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
			if _, err := b.apply(placementDoc(tb, cluster.ID(fmt.Sprintf("c%02d", i)), 1, time.Duration(n-i)*time.Second, "", d),
				noon); err != nil {
				t.Fatal(err)
			}
		}
		asks := b.plan(noon)
		fleet := b.fleet(noon)
		last := map[string]string{}
		for _, w := range asks {
			i := choose(w.demand, fleet)
			if i < 0 {
				t.Fatalf("%s is asked, and there is no room", w.cluster)
			}
			fleet[i].take(w.demand.Amounts)
			last[w.class] = string(w.cluster)
		}
		for _, w := range b.waitingInOrder() {
			asked := slices.ContainsFunc(asks, func(a waiter) bool { return a.id == w.id })
			if !asked && w.cluster < cluster.ID(last[w.class]) {
				t.Fatalf("%s is passed over for %s", w.cluster, last[w.class])
			}
			if !asked && choose(w.demand, fleet) >= 0 {
				t.Fatalf("there is room for %s, and it is not asked", w.cluster)
			}
		}
	})
}

// Ten thousand that wait: as many are asked as there is room for, and no more
// than can be under way.
func TestAPlanFor10000(t *testing.T) {
	b := crowd(t, 10_000)
	if asks := b.plan(noon); len(asks) != 0 {
		t.Fatalf("%d are asked, and there is no room", len(asks))
	}
	b.show(t, mcDoc(t, "m000", 2, `{"capacity":{"planes":107}}`, noon, "True"))
	asks := b.plan(noon)
	if len(asks) != 7 || asks[0].cluster != "c00000" || asks[6].cluster != "c00006" {
		t.Fatalf("with room for 7 are asked: %d", len(asks))
	}
	b.show(t, mcDoc(t, "m000", 3, `{}`, noon, "True"))
	if asks = b.plan(noon); len(asks) != maxAsked {
		t.Fatalf("with room for all are asked at a time: %d", len(asks))
	}
}

// crowd is a hundred management clusters that are full, and n clusters that
// wait.
func crowd(t testing.TB, n int) *board {
	b := newBoard()
	one := Demand{Amounts: Amounts{"planes": 1, "memory_mib": 350}}
	for i := range 100 {
		mc := fmt.Sprintf("m%03d", i)
		b.show(t, mcDoc(t, mc, 1, `{"capacity":{"planes":100}}`, noon, "True"))
		for j := range 100 {
			b.show(t, placementDoc(t, cluster.ID(fmt.Sprintf("p%03d-%03d", i, j)), 1, 0, mc, one))
		}
	}
	for i := range n {
		b.show(t, placementDoc(t, cluster.ID(fmt.Sprintf("c%05d", i)), 1, time.Duration(n-i)*time.Second, "", one))
	}
	return b
}

// BenchmarkPlan is one look at who may find room: 100 management clusters,
// 10,000 placed clusters, 10,000 that wait.
func BenchmarkPlan(b *testing.B) {
	board := crowd(b, 10_000)
	for name, spec := range map[string]string{"none": `{"capacity":{"planes":100}}`,
		"one": `{"capacity":{"planes":101}}`, "all": `{}`} {
		board.show(b, mcDoc(b, "m050", 2+int64(len(name)), spec, noon, "True"))
		b.Run("room="+name, func(b *testing.B) {
			for b.Loop() {
				board.plan(noon)
			}
		})
	}
}

// Whatever order the feed brings things in, and however much at once: clusters
// of a management cluster that is lost are reported once, and once more when it is
// back.
func TestLostChangesNamesEachClusterOnceForALossAndOnceForItsEnd(t *testing.T) {
	names := func(ws []waiter) (s string) {
		for _, w := range ws {
			s += string(w.cluster) + " "
		}
		return s
	}
	b := newBoard()
	turns := func(gone, back string) {
		t.Helper()
		g, h := b.lostChanges()
		if names(g) != gone || names(h) != back {
			t.Errorf("lost: %q, want %q; back: %q, want %q", names(g), gone, names(h), back)
		}
	}
	b.show(t, mcDoc(t, "m", 3, `{}`, noon, "False")) // the first that is heard of it
	b.show(t, placementDoc(t, "a", 1, 0, "m", Demand{}))
	b.show(t, placementDoc(t, "w", 1, 0, "", Demand{}))
	turns("a ", "")
	b.show(t, mcDoc(t, "m", 4, `{"state":"Cordoned"}`, noon, "False"))
	turns("", "")
	b.show(t, placementDoc(t, "b", 1, 0, "m", Demand{})) // later than that of its management cluster
	turns("b ", "")
	doc := placementDoc(t, "a", 2, 0, "m", Demand{})
	doc.Removed = true
	b.show(t, doc)
	b.show(t, mcDoc(t, "m", 5, `{}`, noon, "True"))
	turns("", "b ")
	b.show(t, mcDoc(t, "m", 6, `{}`, noon, "False"))
	b.show(t, mcDoc(t, "m", 7, `{}`, noon, "True"))
	turns("", "")
}
