package gitops

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// TestValuesThatAChartRefusesAreShownWithTheirLine sets values that schemas of charts refuse, at several levels.
func TestValuesThatAChartRefusesAreShownWithTheirLine(t *testing.T) {
	charts := fstest.MapFS{
		"deploy/charts/regional-cluster/a/values.schema.json": {Data: []byte(`{"type": "object", "required": ["host"],
			"properties": {"host": {"type": "string"}, "replicas": {"type": "integer", "minimum": 1},
			"global": {"type": "object", "required": ["region"]}}}`)},
		"deploy/charts/regional-cluster/a/values.yaml": {Data: []byte("replicas: 2\n")},
		"deploy/charts/shared/b/values.schema.json": {Data: []byte(
			`{"properties": {"level": {"enum": ["info", "debug"]}}}`)},
		"deploy/charts/shared/c/values.yaml": {Data: []byte("free: 1\n")},
	}
	tree := mapFS{
		"defaults.yaml": "git: {repository: r}\nvalues:\n  global:\n    level: info\n  regional-cluster:\n" +
			"    host: h\n",
		"p/environment.yaml":  "sectors: [main]\n",
		"p/regions/r1.yaml":   "sector: main\nmanagementClusters: {mc01: }\n",
		"p/regions/r2.yaml":   "sector: main\n",
		"p/sectors/main.yaml": "",
	}
	check := func(want ...string) {
		t.Helper()
		f, err := Load(tree.files(), "config")
		if err != nil {
			t.Fatal(err)
		}
		_, err = Repository{Files: charts}.CheckCharts(f)
		var got []string
		if err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if len(got) != len(want) {
			t.Errorf("the mistakes are %q, want %q", got, want)
			return
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("got %q, want %q", got[i], want[i])
			}
		}
	}
	check()
	tree["p/regions/r1.yaml"] = "sector: main\nmanagementClusters:\n  mc01:\n    values:\n      management-cluster:\n" +
		"        level: loud\n"
	check("config/p/regions/r1.yaml:6: the chart deploy/charts/shared/b refuses the value level: value must be one of")
	tree["p/sectors/main.yaml"] = "values:\n  regional-cluster:\n    replicas: 0\n"
	const regional = "the chart deploy/charts/regional-cluster/a refuses "
	check("config/p/sectors/main.yaml:3: "+regional+"the value replicas: minimum:",
		"config/p/regions/r1.yaml:6: ")
	tree["p/sectors/main.yaml"] = "git: {revision: abcdef0}\nvalues:\n  regional-cluster:\n    replicas: 0\n"
	check("config/p/sectors/main.yaml:4: "+regional+"the value replicas: minimum:", // a later pin takes both
		"config/p/regions/r1.yaml:6: ")
	tree["p/sectors/main.yaml"] = "values:\n  regional-cluster:\n    host: null\n"
	tree["p/regions/r1.yaml"] = "sector: main\n"
	check("config/p/regions/r1.yaml:1: " + regional + "the values: missing property 'host'")
}

// TestEachRegionsGlobalValuesAreChecked: two regions differ in nothing but a value that each chart gets as a global.
func TestEachRegionsGlobalValuesAreChecked(t *testing.T) {
	charts := fstest.MapFS{"deploy/charts/regional-cluster/a/values.schema.json": {Data: []byte(
		`{"properties": {"global": {"properties": {"aws_region": {"enum": ["eu-west-1"]}}}}}`)}}
	f, err := Load(mapFS{
		"defaults.yaml":       "git: {repository: r}\naws: {region: eu-west-1}\n",
		"p/environment.yaml":  "sectors: [main]\n",
		"p/regions/r1.yaml":   "sector: main\n",
		"p/regions/r2.yaml":   "sector: main\naws: {region: us-east-1}\n",
		"p/sectors/main.yaml": "",
	}.files(), "config")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Repository{Files: charts}.CheckCharts(f)
	if err == nil || !strings.Contains(err.Error(), "p/regions/r2.yaml") || !strings.Contains(err.Error(), "aws_region") {
		t.Errorf("the mistakes are %v", err)
	}
}

// TestTimesOfLossesAreRenderedInTheFormOfTheCharts: each time that the configuration accepts is one of the charts, too.
func TestTimesOfLossesAreRenderedInTheFormOfTheCharts(t *testing.T) {
	for text, want := range map[string]string{`30m0s`: "30m", `1800s`: "30m", `1.5h`: "1h30m", `0s`: "0", `"0"`: "0",
		`90m`: "1h30m", `5m`: "5m", `48h`: "48h"} {
		f, err := Load(mapFS{
			"defaults.yaml":       "git: {repository: r}\n",
			"p/environment.yaml":  "sectors: [main]\n",
			"p/regions/r1.yaml":   "sector: main\nservices: {recoverLostAfter: " + text + "}\nmanagementClusters: {mc01: }\n",
			"p/sectors/main.yaml": "",
		}.files(), "config")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if _, err := (Repository{Files: os.DirFS("..")}).CheckCharts(f); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got := Declare(f.Regions()[0]).Services.RecoverLostAfter; got != want {
			t.Errorf("%s is rendered as %q, want %q", text, got, want)
		}
	}
}

// TestTheExamplesPassTheSchemasOfTheCharts checks the worked tree by the charts of this repository,
// which refuse a mistake.
func TestTheExamplesPassTheSchemasOfTheCharts(t *testing.T) {
	if _, err := (Repository{Files: os.DirFS("..")}).CheckCharts(example(t)); err != nil {
		t.Error(err)
	}
	c := newChartChecker(os.DirFS(".."))
	for _, typ := range []string{regionalCluster, managementCluster} {
		charts, err := c.chartsIn("deploy/charts/" + typ)
		if err != nil || len(charts) != 1 || len(charts[0].mistakes(map[string]any{"global": "no mapping"})) == 0 {
			t.Errorf("%s: %v, %v", typ, charts, err)
		}
	}
}
