package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

func TestFailuresHaveReasons(t *testing.T) {
	exited := func(output string) error { return fmt.Errorf("%w: %s", plane.ErrExited, output) }
	for _, c := range []struct {
		err     error
		reason  controlplane.FailureReason
		message string
	}{
		{fmt.Errorf("starting: %w", &fs.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}), controlplane.DiskFull, "full"},
		{exited("{\"msg\":\"etcd\"}\natoll-kube: etcd: walpb: write /d/wal: no space left on device"), controlplane.DiskFull,
			"full"},
		{syscall.EADDRINUSE, controlplane.PortTaken, "port"},
		{exited("atoll-kube: listen tcp 127.0.0.1:30001: bind: address already in use"), controlplane.PortTaken, "port"},
		{checkRunnable("/nowhere/atoll-kube"), controlplane.BinaryMissing, "program"},
		{exited(`{"time":"2026","msg":"ready"}`), controlplane.PlaneFailed, "killed"},
		{exited("atoll-kube: data directory: it is damaged\n"), controlplane.PlaneFailed, "damaged"},
		{exited("panic: boom\n\ngoroutine 1 [running]:\nmain.main()"), controlplane.PlaneFailed, "panic: boom"},
		{fmt.Errorf("%w: for long", errHangs), controlplane.PlaneHangs, "for long"},
		{fmt.Errorf("%w of 64 MiB", errOutOfMemory), controlplane.OutOfMemory, "memory of 64 MiB"},
		{errors.New("strange"), controlplane.PlaneFailed, "strange"},
	} {
		f := newFailure(c.err)
		if f.Reason != c.reason || !strings.Contains(f.Message, c.message) {
			t.Errorf("%v: %s %q, want %s %q", c.err, f.Reason, f.Message, c.reason, c.message)
		}
	}
}

func TestBackOffGrowsToABound(t *testing.T) {
	var last time.Duration
	for n := 1; n < 100; n++ {
		d := backoff(&controlplane.Failure{Reason: controlplane.PlaneFailed, Count: n})
		if d < last || d > 30*time.Second {
			t.Fatalf("after %d failures %s, before %s", n, d, last)
		}
		last = d
	}
	if last != 30*time.Second {
		t.Errorf("it ends at %s", last)
	}
	if d := backoff(&controlplane.Failure{Reason: controlplane.PlaneFailed, Count: 1}); d != 0 {
		t.Errorf("the first failure waits %s", d)
	}
	if d := backoff(&controlplane.Failure{Reason: controlplane.DiskFull, Count: 50}); d != 3*time.Second {
		t.Errorf("a full disk is looked at after %s", d)
	}
}

func TestALogStaysBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plane.log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chunk := []byte(strings.Repeat("x", 1<<20))
	for range 13 {
		if _, err := f.Write(chunk); err != nil {
			t.Fatal(err)
		}
		if err := boundLog(path); err != nil {
			t.Fatal(err)
		}
	}
	now, err := os.Stat(path)
	old, oldErr := os.Stat(path + ".1")
	if err := errors.Join(err, oldErr); err != nil {
		t.Fatal(err)
	}
	if total := now.Size() + old.Size(); total > 3*logLimit || now.Size() != 3<<20 {
		t.Errorf("%d bytes and %d set aside", now.Size(), old.Size())
	}
}

// A plane can make its log as long as it likes without writing that much.
func TestAHugeLogIsNotCopied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plane.log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := boundLog(path); err != nil {
		t.Fatal(err)
	}
	now, err := os.Stat(path)
	old, oldErr := os.Stat(path + ".1")
	if err := errors.Join(err, oldErr); err != nil {
		t.Fatal(err)
	}
	if now.Size() != 0 || old.Size() != 4*logLimit {
		t.Errorf("%d bytes and %d set aside", now.Size(), old.Size())
	}
}
