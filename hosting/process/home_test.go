package process

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A child between fork and exec has all files of its parent, the lock's among them.
func TestALockEndsAlthoughAChildHasItsFile(t *testing.T) {
	h := home{dir: t.TempDir()}
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.lock(); !errors.Is(err, ErrLocked) {
		t.Fatalf("a second lock: %v", err)
	}
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	for _, link := range links {
		if target, _ := os.Readlink(link); target != filepath.Join(h.dir, "hosting.lock") {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			t.Fatal(err)
		}
		held, err := unix.Dup(fd) // as the child has it
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(held)
		copies++
	}
	if copies == 0 {
		t.Fatal("the file of the lock was not found")
	}
	unlock()
	again, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	again()
}
