package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEachBinaryHasTheListedDependencies compares the modules that each binary links with a golden file, so that a new
// dependency shows in a review. go.mod has the versions.
func TestEachBinaryHasTheListedDependencies(t *testing.T) {
	for binary, where := range map[string]struct{ dir, pkg string }{
		"atoll":      {"../..", "./cmd/atoll"},
		"atoll-kube": {"../../kube", "."},
		"atoll-node": {"../../node/programs", "."},
		"containerd": {"../../node/programs/runtime", "."},
		"coredns":    {"../../node/programs/dns", "."},
	} {
		t.Run(binary, func(t *testing.T) {
			cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", where.pkg)
			cmd.Dir = where.dir
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build` builds them
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("go list: %v", err)
			}
			modules := strings.Fields(string(out))
			slices.Sort(modules)
			got := strings.Join(slices.Compact(modules), "\n") + "\n"
			golden := filepath.Join("testdata", binary+".modules")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got == string(want) {
				return
			}
			before, after := strings.Fields(string(want)), strings.Fields(got)
			for _, module := range after {
				if !slices.Contains(before, module) {
					t.Errorf("%s links a new module: %s", binary, module)
				}
			}
			for _, module := range before {
				if !slices.Contains(after, module) {
					t.Errorf("%s does not link %s any more", binary, module)
				}
			}
			t.Errorf("if that is right: go test ./test/house -update")
		})
	}
}
