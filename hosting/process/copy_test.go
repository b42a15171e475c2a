package process

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A copy of a plane's data never takes the space that the other planes on the disk need.
func TestACopyLeavesSpaceOnTheDisk(t *testing.T) {
	to := t.TempDir()
	var disk unix.Statfs_t
	if err := unix.Statfs(to, &disk); err != nil {
		t.Fatal(err)
	}
	if err := checkSpace(to, 1, 0); err != nil {
		t.Errorf("a copy of a byte: %v", err)
	}
	if err := checkSpace(to, 1, disk.Blocks*uint64(disk.Bsize)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a copy that leaves less than the reserve: %v, want %v", err, unix.ENOSPC)
	}
}
