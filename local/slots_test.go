package local

import (
	"os"
	"path/filepath"
	"testing"
)

// The process of a plane that was warm is marked with its slot; the file of the cluster that has it names the cluster.
// One that no cluster has is nobody's.
func TestAPlaneThatWasWarmIsItsClusters(t *testing.T) {
	h := Home{Dir: t.TempDir()}
	for owner, slot := range map[string]string{"clusters-1/hc-1": "aaaa", "clusters-2/hc-2": "bbbb",
		"_warm/cccc": "cccc"} {
		dir := filepath.Join(h.hostingDir("mc"), "state", filepath.FromSlash(owner))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"slot": slot + "\n", "plane.log": "x"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for slot, want := range map[string]string{"aaaa": "clusters-1/hc-1", "bbbb": "clusters-2/hc-2", "cccc": "_warm/cccc",
		"dddd": "_warm/dddd"} {
		if namespace, hc := h.ownerOfSlot("mc", slot); namespace+"/"+hc != want {
			t.Errorf("the slot %s is that of %s/%s, want %s", slot, namespace, hc, want)
		}
	}
	if logs := h.planeLogs(); len(logs) != 2 || logs["hc-1"] == "" || logs["hc-2"] == "" {
		t.Errorf("the logs are %v", logs)
	}
}
