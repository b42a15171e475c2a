//go:build realnodes

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/node"
	"atoll.dev/test/testsite"
)

// insideOf returns the path on this machine of a path of a node.
func insideOf(t *testing.T, c node.Config, path string) string {
	t.Helper()
	status, err := node.ReadStatus(c.Home)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("/proc/%d/root%s", status.Init, path)
}

// checkDisk fills the node's disk as the root of the node could, and empties it again.
func checkDisk(t *testing.T, c node.Config) {
	t.Helper()
	status, err := node.ReadStatus(c.Home)
	if err != nil || status.Disk != c.Resources.Disk.Value() {
		t.Fatalf("the disk has %d bytes, error %v", status.Disk, err)
	}
	for _, path := range persistentDirs {
		var disk unix.Statfs_t
		if err := unix.Statfs(insideOf(t, c, path), &disk); err != nil {
			t.Fatal(err)
		}
		if size := int64(disk.Blocks) * disk.Frsize; size > status.Disk {
			t.Errorf("%s is on a file system of %d bytes", path, size)
		}
	}
	asRoot := func(program string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--target", strconv.Itoa(status.Init), "--user",
			"--mount", "--setuid", "0", "--setgid", "0", program}, args...)...)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	output, err := asRoot("dd", "if=/dev/zero", "of=/var/lib/containerd/full", "bs=1M")
	if err == nil || !strings.Contains(output, "No space left on device") {
		t.Errorf("the disk is not full: %s, %v", output, err)
	}
	if output, err := asRoot("rm", "/var/lib/containerd/full"); err != nil {
		t.Errorf("%s: %v", output, err)
	}
}

// loopOf returns the name of the loop device that has the disk of a node; "" when none has it.
func loopOf(t *testing.T, c node.Config) string {
	t.Helper()
	file, err := os.Open(diskFile(c.Home))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	device, err := deviceOf(file)
	if err != nil {
		t.Fatal(err)
	}
	return device
}

// awaitNoLoop waits until no loop device has the disk of a node. The kernel frees it soon after the last process of the
// node's mount namespace has ended.
func awaitNoLoop(t *testing.T, c node.Config) {
	t.Helper()
	testsite.EventuallyWithin(t, "no loop device of "+c.Name, readyWait, func() error {
		if device := loopOf(t, c); device != "" {
			return fmt.Errorf("%s has the disk", device)
		}
		return nil
	})
}

// A home of an earlier version has directories with the node's files, which a disk would hide.
func TestANodeWithFilesInItsHomeGetsNoDisk(t *testing.T) {
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "containerd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if size, err := makeDisk(home, minDisk); size != 0 || !errors.Is(err, errNoDisk) {
		t.Errorf("%d bytes, %v", size, err)
	}
	home = t.TempDir()
	size, err := makeDisk(home, 1<<50)
	var machine unix.Statfs_t
	if statErr := unix.Statfs(home, &machine); statErr != nil {
		t.Fatal(statErr)
	}
	if err != nil || size != int64(machine.Blocks)*machine.Frsize/diskDivisor {
		t.Errorf("%d bytes of %d, %v", size, int64(machine.Blocks)*machine.Frsize, err)
	}
	if again, err := makeDisk(home, minDisk); err != nil || again != size {
		t.Errorf("%d bytes the second time, %v", again, err)
	}
}

// The kernel unmounts the disk of a node that was killed a moment after its last process. A start meanwhile waits for
// that: two mounts of one file system would destroy it. The node that ended has attached the disk in a mount namespace
// of its own, and the home is on a mount of its own, so the kernel shows another path than that of the home.
func TestADiskIsNeverAttachedTwice(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("none", mount, "tmpfs", 0, "size=2g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	home := filepath.Join(mount, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := makeDisk(home, minDisk); err != nil {
		t.Fatal(err)
	}
	var first *os.File
	err := inOwnMounts(func() (err error) {
		first, err = attachLoop(diskFile(home))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	attached := make(chan error, 1)
	go func() {
		second, err := attachLoop(diskFile(home))
		if err == nil {
			err = second.Close()
		}
		attached <- err
	}()
	select {
	case err := <-attached:
		t.Fatalf("it was attached a second time: %v", errors.Join(err, first.Close()))
	case <-time.After(20 * pollEvery):
	}
	if err := errors.Join(first.Close(), <-attached); err != nil {
		t.Error(err)
	}
	awaitNoLoop(t, node.Config{Home: home, Name: "a test"})
}

// The mounts of a disk end with the descriptors, also when the thread that made them lives on.
func TestADiskIsUnmountedWithItsMounts(t *testing.T) {
	c := node.Config{Home: t.TempDir(), Name: "a test"}
	if _, err := makeDisk(c.Home, minDisk); err != nil {
		t.Fatal(err)
	}
	lives, end := make(chan struct{}), make(chan struct{})
	go func() {
		_ = inOwnMounts(func() error {
			err := withMounted(diskFile(c.Home), func(string) error { return nil })
			lives <- struct{}{}
			<-end
			return err
		})
	}()
	<-lives
	awaitNoLoop(t, c)
	close(end)
	mounts, err := diskMounts(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if loopOf(t, c) == "" {
		t.Error("the disk is not mounted")
	}
	closeFiles(mounts)
	awaitNoLoop(t, c)
}
