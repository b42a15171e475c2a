package plane

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/internal/pause"
)

// GroupPrefix begins the name of each control group that has the groups of planes.
const GroupPrefix = "atoll-planes-"

// GroupName returns the name of the control group that has the groups of the planes of one data directory of hosting.
func GroupName(dataDir string) string {
	h := fnv.New32a()
	h.Write([]byte(dataDir))
	return fmt.Sprintf("%s%08x", GroupPrefix, h.Sum32())
}

// groupPatience is how long RemoveGroups waits for the kernel to end killed processes.
const groupPatience = 5 * time.Second

// RemoveGroups removes the control groups of the planes of a data directory from each hierarchy. The planes and their
// hosting have ended; the error names a group that has a process. It may be repeated.
func RemoveGroups(ctx context.Context, dataDir string) error {
	var problems []error
	for _, hierarchy := range []string{"", "*"} { // version 2, version 1
		roots, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", hierarchy, GroupName(dataDir)))
		if err != nil {
			return err
		}
		for _, root := range roots {
			groups, err := filepath.Glob(filepath.Join(root, "*", "cgroup.procs"))
			if err != nil {
				return err
			}
			for _, file := range groups {
				problems = append(problems, removeGroup(ctx, filepath.Dir(file)))
			}
			problems = append(problems, removeGroup(ctx, root))
		}
	}
	return errors.Join(problems...)
}

// removeGroup removes one control group. While it has a process, removeGroup tries again for groupPatience.
func removeGroup(ctx context.Context, dir string) error {
	for deadline := time.Now().Add(groupPatience); ; {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		isBusy := errors.Is(err, unix.EBUSY) && time.Now().Before(deadline)
		if !isBusy || !pause.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("removing the control group %s: %w", dir, err)
		}
	}
}
