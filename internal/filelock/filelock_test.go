package filelock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOneAtATimeHasTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Try(path); !errors.Is(err, ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}
	var isFree atomic.Bool
	got := make(chan error, 1)
	go func() {
		unlock, err := Wait(path)
		if err == nil && !isFree.Load() {
			err = errors.New("it has not waited")
		}
		if err == nil {
			unlock()
		}
		got <- err
	}()
	for tick := time.Tick(time.Millisecond); !isBlocked(t); <-tick {
		select {
		case err := <-got:
			t.Fatalf("a lock that waits, while another has the lock: %v", err)
		default:
		}
	}
	isFree.Store(true)
	unlock()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if unlock, err = Try(path); err != nil {
		t.Fatalf("after the end: %v", err)
	}
	unlock()
}

// isBlocked reports whether this process waits for a lock: then /proc/locks has a line such as
// "1: -> FLOCK  ADVISORY  WRITE 4242 08:01:1234 0 EOF", with its number.
func isBlocked(t *testing.T) bool {
	t.Helper()
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(strings.Split(string(locks), "\n"), func(line string) bool {
		return strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(" %d ", os.Getpid()))
	})
}

// A child between fork and exec has the file open for a moment.
func TestUnlockEndsTheLockWhileAChildHasTheFileOpen(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	childs, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(childs)
	dir := f.Name()
	unlock, err := TryFile(f)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if f, err = os.Open(dir); err != nil {
		t.Fatal(err)
	}
	if unlock, err = TryFile(f); err != nil {
		t.Fatalf("the lock has not ended: %v", err)
	}
	unlock()
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is open: %v", err)
	}
}

func TestAFileThatCannotBeLockedIsClosed(t *testing.T) {
	dir := t.TempDir()
	if _, err := Try(filepath.Join(dir, "none", "lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
	unlock, err := Try(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryFile(f); !errors.Is(err, ErrLocked) {
		t.Errorf("locked twice: %v", err)
	}
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is open: %v", err)
	}
}
