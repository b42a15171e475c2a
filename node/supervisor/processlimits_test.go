//go:build realnodes

package supervisor

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// processLimits returns the limits of processes of a node's cgroup and of those in it that have one, by path.
func processLimits(t *testing.T, cgroup string) map[string]int {
	t.Helper()
	all, err := readHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]int{}
	for _, h := range all {
		root := filepath.Join(h.Path, cgroup)
		_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Base(path) != "pids.max" {
				return nil // cgroups come and go
			}
			data, _ := os.ReadFile(path)
			if most, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
				limits[strings.TrimPrefix(filepath.Dir(path), root)] = most
			}
			return nil
		})
	}
	return limits
}
