package operator

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"sigs.k8s.io/yaml"

	api "atoll.dev/api/clm"
	"atoll.dev/cli/terminal"
)

// TestWhy runs the files of testdata/why: "why" takes findings as YAML and prints the explanation.
func TestWhy(t *testing.T) {
	datadriven.Walk(t, "testdata/why", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var f resourceFacts
			if err := yaml.UnmarshalStrict([]byte(d.Input), &f); err != nil {
				d.Fatalf(t, "%v", err)
			}
			var b strings.Builder
			explanationTable(&b, explainResource(f), "clusters", f.Now)
			return b.String()
		})
	})
}

func TestSelectFlagsMakeOneSearch(t *testing.T) {
	for _, c := range []struct {
		s    selectFlags
		want string
	}{
		{selectFlags{}, ""},
		{selectFlags{search: "name='a' or name='b'"}, "name='a' or name='b'"},
		{selectFlags{search: "name='a' or name='b'", owner: "1"}, "(name='a' or name='b') and owner_id='1'"},
		{selectFlags{labels: map[string]string{"b": "it's", "a.io/c": "1"}},
			`labels."a.io/c"='1' and labels."b"='it''s'`},
	} {
		if got := c.s.condition(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.s, got, c.want)
		}
	}
}

func TestHistoryTableSummarizesRecords(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var b strings.Builder
	historyTable(&b, []api.HistoryRecord{
		{Seq: 4, Time: at, Action: "force-delete", Principal: "cli:root", Note: json.RawMessage(
			`{"reason":"burnt down"}`)},
		{Seq: 3, Time: at, Action: "update", Generation: 1, Principal: "system:adapter", Status: json.RawMessage(
			`{"conditions":[{"type":"Reconciled","status":"True","reason":"ReconciledAll"}]}`)},
		{Seq: 1, Time: at, Action: "create", Generation: 1, Principal: "a@b", Spec: json.RawMessage(`{}`),
			Status: json.RawMessage(`{}`)},
	}, oneResource, terminal.Narrow)
	want := `TIME                          ACTION         GENERATION   BY               WHAT
2026-01-02 03:04:05.000 UTC   force-delete   -            cli:root         burnt down
2026-01-02 03:04:05.000 UTC   update         1            system:adapter   status: Reconciled=True ReconciledAll
2026-01-02 03:04:05.000 UTC   create         1            a@b              spec
`
	if got := b.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}
