package nodepool

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/api/hypershift"
)

// Each step of a replacement by its limits. A node is "c" (current) or "o" (outdated), and in capitals when it is
// ready.
func TestAReplacementKeepsItsLimits(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas int
		limits   replacement
		nodes    string
		create   int
		drained  string // in the order of their numbers
	}{
		{"begins with the surge", 3, replacement{surge: 1}, "OOO", 1, ""},
		{"waits for the first new node", 3, replacement{surge: 1}, "OOOc", 0, ""},
		{"drains one", 3, replacement{surge: 1}, "OOOC", 0, "O"},
		{"goes on", 3, replacement{surge: 1}, "OOC", 1, ""},
		{"an unready node leaves without waiting", 3, replacement{surge: 1}, "OoOc", 0, "o"},
		{"is complete", 3, replacement{surge: 1}, "CCC", 0, ""},
		{"a larger surge", 3, replacement{surge: 3}, "OOO", 3, ""},
		{"drains as many as new ones are ready", 3, replacement{surge: 3}, "OOOCCc", 0, "OO"},
		{"no surge: drains first", 3, replacement{unavailable: 1}, "OOO", 0, "O"},
		{"no surge: then creates", 3, replacement{unavailable: 1}, "OO", 1, ""},
		{"no surge: waits for the new node", 3, replacement{unavailable: 1}, "OOc", 0, ""},
		{"no surge: goes on", 3, replacement{unavailable: 1}, "OOC", 0, "O"},
		{"surge and unavailable", 4, replacement{surge: 1, unavailable: 2}, "OOOO", 1, "OO"},
		{"all at once", 2, replacement{unavailable: 2}, "OO", 0, "OO"},
		{"after an outage all are unready for a moment", 3, replacement{surge: 1}, "ooo", 1, ""},
		{"an outage with an unavailable node", 3, replacement{unavailable: 1}, "ooo", 0, "o"},
		{"too few nodes", 3, replacement{surge: 1}, "O", 3, ""},
		{"scaled down", 2, replacement{surge: 1}, "OOOOO", 0, "OOO"},
		{"scaled down to nothing", 0, replacement{surge: 1}, "OCo", 0, "OCo"},
		{"on deletion nothing is replaced", 3, replacement{onDelete: true, surge: 1}, "OOO", 0, ""},
		{"on deletion a deleted node is made again", 3, replacement{onDelete: true, surge: 1}, "OO", 1, ""},
		{"on deletion a smaller pool loses outdated nodes first", 2, replacement{onDelete: true, surge: 1}, "COC", 0, "O"},
	} {
		w := want(c.replicas, "1.36.3")
		w.replacement = c.limits
		var nodes []*node
		for i, letter := range c.nodes {
			version := "1.36.3"
			if letter == 'o' || letter == 'O' {
				version = "1.36.2"
			}
			nodes = append(nodes, testNode(i, version, statusOf(letter == 'O' || letter == 'C')))
		}
		d := plan(w, nodes, epoch.Add(time.Minute), time.Hour)
		slices.SortFunc(d.drain, func(a, b *node) int { return a.index() - b.index() })
		var drained strings.Builder
		for _, n := range d.drain {
			drained.WriteByte(c.nodes[n.index()])
		}
		if d.createCount != c.create || drained.String() != c.drained {
			t.Errorf("%s: %d of %q, limits %+v: creates %d and drains %q, want %d and %q", c.name, c.replicas, c.nodes,
				c.limits, d.createCount, drained.String(), c.create, c.drained)
		}
	}
}

func TestTheLimitsOfAReplacementAreRead(t *testing.T) {
	for text, want := range map[string]replacement{
		`{}`:                                    {surge: 1},
		`{"replace": {"strategy": "OnDelete"}}`: {surge: 1, onDelete: true},
		`{"replace": {"strategy": "RollingUpdate"}}`:                                   {surge: 1},
		`{"replace": {"rollingUpdate": {"maxSurge": 3}}}`:                              {surge: 3},
		`{"replace": {"rollingUpdate": {"maxSurge": 300}}}`:                            {surge: 10},
		`{"replace": {"rollingUpdate": {"maxUnavailable": 2}}}`:                        {surge: 1, unavailable: 2},
		`{"replace": {"rollingUpdate": {"maxUnavailable": 20}}}`:                       {surge: 1, unavailable: 10},
		`{"replace": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}}`: {surge: 3, unavailable: 2},
		`{"replace": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "5%"}}}`:      {unavailable: 1},
	} {
		var m hypershift.NodePoolManagement
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		if got, err := readReplacement(m.Replace, 10); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{`{"strategy": "Recreate"}`, `{"rollingUpdate": {"maxSurge": "many"}}`,
		`{"rollingUpdate": {"maxSurge": -1}}`, `{"rollingUpdate": {"maxUnavailable": -1}}`} {
		var r hypershift.ReplaceUpgrade
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		if got, err := readReplacement(&r, 10); err == nil || got != (replacement{surge: 1}) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// A deleted node of a pool with OnDelete gets a successor of the new version; other nodes stay.
func TestOnDeleteReplacesADeletedNodeOnly(t *testing.T) {
	w := newWorld(t, Options{})
	w.pool("workers", 2, func(spec map[string]any) {
		spec["management"] = map[string]any{"replace": map[string]any{"strategy": "OnDelete"}}
		spec["release"] = map[string]any{"image": "atoll.dev/release:1.36.2"}
	})
	w.ready("workers")
	w.change("workers", map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}})
	w.await("workers", hypershift.UpdatingVersion, "True", AsExpected)
	if err := w.admin.Resource(nodeResource()).Delete(t.Context(), "workers-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the successor has the new version", func() error {
		got := map[string]string{}
		for _, n := range w.nodes("workers") {
			got[n.GetName()], _, _ = unstructured.NestedString(n.Object, "status", "nodeInfo", "kubeletVersion")
		}
		if want := (map[string]string{"workers-0": "v1.36.2", "workers-1": "v1.36.3"}); !maps.Equal(got, want) {
			return fmt.Errorf("versions %v", got)
		}
		return nil
	})
}
