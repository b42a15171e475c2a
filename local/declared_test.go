package local

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/gitops"
)

func TestDeclarationsAreReadFromWhatIsRendered(t *testing.T) {
	d, err := ReadDeclaration("../examples/deploy", "us-east-1")
	if err != nil || d.Sector != "main" || !slices.Equal(clusterNames(d), names{"mc01-us-east-1", "mc02-us-east-1"}) {
		t.Errorf("%+v, %v", d, err)
	}
	dir := t.TempDir()
	for _, environment := range []string{"one", "two"} {
		if err := os.MkdirAll(filepath.Join(dir, environment, "r1"), 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, environment, "r1", "region.yaml")
		if err := os.WriteFile(file, []byte("region: r1\nsektor: x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(dir, "three", "r3")
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	text := []byte("environment: three\nregion: r3\n")
	if err := os.WriteFile(filepath.Join(own, "region.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDeclaration(own, "three/r3"); err == nil || !strings.Contains(err.Error(),
		"three/r3/regional-cluster/values.yaml") {
		t.Errorf("without values of Helm: %v", err)
	}
	values := filepath.Join(own, "regional-cluster", "values.yaml")
	if err := os.Mkdir(filepath.Dir(values), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(values, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{dir, own} {
		if d, err := ReadDeclaration(from, "three/r3"); err != nil || d.Region != "r3" {
			t.Errorf("from %s: %v, %v", from, d, err)
		}
	}
	if _, err := ReadDeclaration(own, "r4"); err == nil {
		t.Error("the directory of a region has another region")
	}
	for region, want := range map[string]string{
		"r2":     "declare the region and run `atoll config render`",
		"r1":     "several environments have the region r1",
		"one/r1": "one/r1/region.yaml:2: unknown key sektor; the nearest known key is sector",
	} {
		if _, err := ReadDeclaration(dir, region); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", region, err, want)
		}
	}
}

func TestAHomeHasTheDeclaredManagementClusters(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	for _, step := range []struct {
		declared, grown, all names
	}{
		{names{"mc01-r1"}, names{"mc01-r1"}, names{"mc01-r1"}},
		{names{"mc01-r1"}, nil, names{"mc01-r1"}},
		{names{"mc02-r1", "mc01-r1"}, names{"mc02-r1"}, names{"mc01-r1", "mc02-r1"}},
		{names{}, nil, names{"mc01-r1", "mc02-r1"}}, // Apply removes them by the API
	} {
		st, grown, err := h.prepareState(UpOptions{Region: "r1", Clusters: step.declared})
		if err != nil || !slices.Equal(grown, step.grown) || !slices.Equal(st.Clusters, step.all) {
			t.Errorf("declared %v: %v grown, %v, %v", step.declared, grown, st.Clusters, err)
		}
	}
	if _, _, err := h.prepareState(UpOptions{Region: "r2", Clusters: names{}}); err == nil {
		t.Error("the home of another region was accepted")
	}
	empty := Home{Dir: filepath.Join(t.TempDir(), "empty")}
	if st, _, err := empty.prepareState(UpOptions{Region: "r1", Clusters: names{}}); err != nil || len(st.Clusters) != 0 {
		t.Errorf("a region without management clusters has %v, %v", st.Clusters, err)
	}
}

func TestCordonsFollowTheDeclarationAndLeaveDrainedClusters(t *testing.T) {
	const ready, cordoned = platform.ManagementClusterStateReady, platform.ManagementClusterStateCordoned
	for _, c := range []struct {
		cordon bool
		state  platform.ManagementClusterState
		want   platform.ManagementClusterUpdateState
	}{
		{true, ready, platform.ManagementClusterUpdateStateCordoned},
		{true, cordoned, ""},
		{false, cordoned, platform.ManagementClusterUpdateStateReady},
		{false, ready, ""},
		{false, platform.ManagementClusterStateDraining, ""},
		{true, platform.ManagementClusterStateDraining, ""},
	} {
		d := gitops.Declaration{ManagementClusters: []gitops.DeclaredCluster{{Name: "mc01-r1",
			Settings: gitops.ManagementClusterSettings{Cordoned: c.cordon}}}}
		if got := stateChange(d, platform.ManagementCluster{Name: "mc01-r1", State: c.state}); got != c.want {
			t.Errorf("cordoned %t, %s: set %q, want %q", c.cordon, c.state, got, c.want)
		}
	}
}

func TestLabelsFollowTheDeclaration(t *testing.T) {
	own := map[string]string{"cluster_type": "management", "cluster_id": "mc01-r1"}
	with := func(name, value string) map[string]string {
		labels := maps.Clone(own)
		labels[name] = value
		return labels
	}
	for _, c := range []struct {
		name                    string
		declared, running, want map[string]string
		drift                   string
	}{
		{"none", nil, own, nil, ""},
		{"added", map[string]string{"zone": "a"}, own, with("zone", "a"),
			"cluster_id=mc01-r1,cluster_type=management,zone=a"},
		{"same", map[string]string{"zone": "a"}, with("zone", "a"), nil, ""},
		{"changed", map[string]string{"zone": "b"}, with("zone", "a"), with("zone", "b"),
			"cluster_id=mc01-r1,cluster_type=management,zone=b"},
		{"removed", nil, with("zone", "a"), own, "cluster_id=mc01-r1,cluster_type=management"},
		{"own label", map[string]string{"cluster_type": "edge"}, own, with("cluster_type", "edge"),
			"cluster_id=mc01-r1,cluster_type=edge"},
	} {
		d := gitops.Declaration{ManagementClusters: []gitops.DeclaredCluster{{Name: "mc01-r1",
			Settings: gitops.ManagementClusterSettings{Labels: c.declared}}}}
		mc := platform.ManagementCluster{Name: "mc01-r1", State: platform.ManagementClusterStateReady, Labels: c.running}
		got := labelsChange(d, mc)
		if (got == nil) != (c.want == nil) || !maps.Equal(got, c.want) {
			t.Errorf("%s: set %v, want %v", c.name, got, c.want)
		}
		want := []Drift{}
		if c.drift != "" {
			want = []Drift{{"mc01-r1 labels", "", c.drift, mapText(c.running)}}
		}
		running := values{}
		running.addCluster(mc.Name, mc.Labels, platform.ManagementClusterUpdate{})
		drift := compareValues(nil, values{"mc01-r1 labels": mapText(labelsOf(d.ManagementClusters[0]))}, values{
			"mc01-r1 labels": running["mc01-r1 labels"]})
		if !slices.Equal(drift, want) {
			t.Errorf("%s: drift %v, want %v", c.name, drift, want)
		}
		mc.Name = "elsewhere"
		if got := labelsChange(d, mc); got != nil {
			t.Errorf("%s: set %v on a cluster that is not declared", c.name, got)
		}
	}
}

type names = []cluster.ManagementCluster

// TestAKilledWriterLeavesAHomeThatStarts: the temporary file of the first region.json does not make the home a foreign
// directory, and a later start removes it.
func TestAKilledWriterLeavesAHomeThatStarts(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	for name, at := range map[string]time.Time{".tmp-1": old, ".tmp-2": time.Now()} {
		if err := os.WriteFile(h.Path(name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(h.Path(name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := h.prepareState(UpOptions{Region: "r1"}); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob(h.Path(".tmp-*"))
	if err != nil || !slices.Equal(left, []string{h.Path(".tmp-2")}) { // its writer may be at work
		t.Errorf("the home has %v: %v", left, err)
	}
}
