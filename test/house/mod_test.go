package house

import (
	"os"
	"regexp"
	"testing"
)

// Modules are pinned exactly: no branch, no "latest", and nothing replaced in
// the main module.
func TestModulesArePinned(t *testing.T) {
	data, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^\s*replace\b`).Match(data) {
		t.Error("go.mod replaces a module")
	}
	for _, m := range regexp.MustCompile(`(?m)^\s+(k8s\.io/kubernetes|go\.etcd\.io/etcd/server/v3)\s`).FindAllString(
		string(data), -1) {
		t.Errorf("go.mod requires %s: upstream Kubernetes stays in kube/", m)
	}
	if !regexp.MustCompile(`(?m)^\s+github\.com/jackc/pgx/v5 v\d+\.\d+\.\d+$`).Match(data) {
		t.Error("go.mod was not read as expected")
	}
}
