package interop

import (
	"os/exec"
	"strings"
	"testing"

	_ "github.com/openshift-online/ocm-common/pkg/utils/parser/sql_parser"
	_ "github.com/yaacov/tree-search-language/pkg/tsl"
	_ "github.com/yaacov/tree-search-language/pkg/walkers/ident"
	_ "github.com/yaacov/tree-search-language/pkg/walkers/sql"
	_ "helm.sh/helm/v3/pkg/chart/loader"
	_ "helm.sh/helm/v3/pkg/engine"
	_ "open-cluster-management.io/ocm/pkg/common/options"
	_ "open-cluster-management.io/ocm/pkg/work/spoke"
	_ "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work"
)

// The tests hold for these versions: a new version is entered here.
func TestForeignProgramsHaveTheListedVersions(t *testing.T) {
	want := map[string]string{
		"open-cluster-management.io/ocm":    "v1.2.1",
		"open-cluster-management.io/sdk-go": "v1.3.0",
		"open-cluster-management.io/api":    "v1.3.0",
		// newer ones want Kubernetes 0.36, without packages that OCM v1.2.1 imports
		"helm.sh/helm/v3": "v3.20.2",
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Version}}{{with .Replace}} replaced{{end}}",
		"all").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path == "atoll.dev" || strings.HasSuffix(version, "replaced") {
			t.Errorf("%s %s: the foreign programs are to be as their owners released them", path, version)
		}
		if w, named := want[path]; named && w != version {
			t.Errorf("%s is linked at %s, want %s", path, version, w)
		}
		delete(want, path)
	}
	if len(want) > 0 {
		t.Errorf("not linked: %v", want)
	}
}
