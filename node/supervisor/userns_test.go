package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestEveryNodeHasIDsOfItsOwn(t *testing.T) {
	used := map[hostID]bool{0: true} // a node without a user namespace
	for range 3 {
		first, err := chooseIDs(used)
		if err != nil || first < firstNodeID || first%idsOfNode != 0 || used[first] {
			t.Fatalf("chose %d of %v, error %v", first, used, err)
		}
		used[first] = true
	}
	delete(used, firstNodeID+idsOfNode)
	if first, err := chooseIDs(used); err != nil || first != firstNodeID+idsOfNode {
		t.Errorf("chose %d, error %v; the second range is free", first, err)
	}
	for first := firstNodeID; first < afterNodeIDs; first += idsOfNode {
		used[first] = true
	}
	if first, err := chooseIDs(used); !errors.Is(err, errNoIDs) {
		t.Errorf("chose %d, error %v; no range is free", first, err)
	}
}

func TestTheOwnersOfCgroupsRecordUsedIDs(t *testing.T) {
	h := hierarchy{Path: t.TempDir()}
	if used, err := usedIDs(h); err != nil || len(used) != 0 {
		t.Errorf("a machine without nodes uses %v, error %v", used, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root changes owners")
	}
	for i, name := range []string{"a", "b"} {
		dir := filepath.Join(h.Path, nodesGroup, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := delegate(dir, firstNodeID+hostID(i)*idsOfNode); err != nil {
			t.Fatal(err)
		}
	}
	used, err := usedIDs(h)
	if err != nil || len(used) != 2 || !used[firstNodeID] || !used[firstNodeID+idsOfNode] {
		t.Errorf("used %v, error %v", used, err)
	}
}
