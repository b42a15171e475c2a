package localnodes

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"atoll.dev/test/testsite"
)

// The removal of a machine whose supervisor was killed removed the remains of all nodes, and an error with those of
// another node held it up for ever.
func TestARemovalLeavesTheRemainsOfOtherNodesAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("makes a cgroup, which needs root")
	}
	s := newSite(t)
	o := order(t, "w0")
	if err := s.all.Start(o); err != nil {
		t.Fatal(err)
	}
	pid := s.running(o.UID, 0)
	parents, err := filepath.Glob("/sys/fs/cgroup/pids")
	if err != nil || len(parents) == 0 {
		parents = []string{"/sys/fs/cgroup"}
	}
	group := filepath.Join(parents[0], "atoll-nodes", "test"+strings.ToLower(rand.Text()[:8]))
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Skipf("this machine has no cgroups: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Errorf("the remains of the other node: %v", err)
		}
		_ = os.Remove(filepath.Dir(group)) // fails while a node is there
	})
	s.all.Remove(testPool, o.UID)
	_ = unix.Kill(pid, unix.SIGKILL) // it has written that it is up, and writes no more
	testsite.Eventually(t, "the machine is gone", func() error {
		if left := s.all.Of(testPool); len(left) > 0 {
			return fmt.Errorf("machines %v", left)
		}
		return nil
	})
}
