package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/gitops"
)

func TestDeclarationsAreReadFromWhatIsRendered(t *testing.T) {
	d, err := ReadDeclaration("../examples/deploy", "us-east-1")
	if err != nil || d.Sector != "main" || !slices.Equal(clusterNames(d), []string{"mc01-us-east-1", "mc02-us-east-1"}) {
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
	for region, want := range map[string]string{
		"r2":     "declare the region and run `atoll config render`",
		"r1":     "several environments have the region r1",
		"one/r1": `one/r1/region.yaml: error unmarshaling JSON: while decoding JSON: json: unknown field "sektor"`,
	} {
		if _, err := ReadDeclaration(dir, region); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", region, err, want)
		}
	}
}

func TestAHomeHasTheDeclaredManagementClusters(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	for _, step := range []struct {
		declared, grown, all []string
	}{
		{[]string{"mc01-r1"}, []string{"mc01-r1"}, []string{"mc01-r1"}},
		{[]string{"mc01-r1"}, nil, []string{"mc01-r1"}},
		{[]string{"mc02-r1", "mc01-r1"}, []string{"mc02-r1"}, []string{"mc01-r1", "mc02-r1"}},
		{[]string{}, nil, []string{"mc01-r1", "mc02-r1"}}, // Apply removes them by the API
	} {
		st, grown, err := h.planState(UpOptions{Region: "r1", Clusters: step.declared})
		if err != nil || !slices.Equal(grown, step.grown) || !slices.Equal(st.Clusters, step.all) {
			t.Errorf("declared %v: %v grown, %v, %v", step.declared, grown, st.Clusters, err)
		}
	}
	if _, _, err := h.planState(UpOptions{Region: "r2", Clusters: []string{}}); err == nil {
		t.Error("the home of another region was accepted")
	}
	empty := Home{Dir: filepath.Join(t.TempDir(), "empty")}
	if st, _, err := empty.planState(UpOptions{Region: "r1", Clusters: []string{}}); err != nil || len(st.Clusters) != 0 {
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
		if got := stateToSet(d, platform.ManagementCluster{Name: "mc01-r1", State: c.state}); got != c.want {
			t.Errorf("cordoned %t, %s: set %q, want %q", c.cordon, c.state, got, c.want)
		}
	}
}
