package plane_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

func TestAPlaneIsStartedAdoptedAndStopped(t *testing.T) {
	p := planetest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), testsite.HangLimit)
	defer cancel()

	r, err := p.Config.Readiness()
	if err != nil || r.PID != p.PID || r.Address != p.Config.Address {
		t.Fatalf("readiness %+v, %v; want pid %d at %s", r, err, p.PID, p.Config.Address)
	}
	again, err := plane.Start(t.Context(), p.Config, plane.Options{})
	if err != nil || !again.Adopted || again.PID != p.PID {
		t.Fatalf("a second start gave %+v, %v; want pid %d adopted", again, err, p.PID)
	}
	if err := again.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if pid, ok := plane.Running(p.Config.Dir); ok {
		t.Fatalf("process %d still holds the directory", pid)
	}
	if err := p.Config.Ready(ctx); !errors.Is(err, plane.ErrNotReady) {
		t.Fatalf("a stopped plane: %v", err)
	}
	if err := again.Stop(ctx); err != nil {
		t.Fatalf("stopping twice: %v", err)
	}
}

func TestAPlaneThatCannotStartReportsWhy(t *testing.T) {
	p := planetest.Shared(t)
	c := p.Config
	c.Dir = t.TempDir() // its address is taken
	second, err := plane.Start(t.Context(), c, plane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = second.Wait(t.Context())
	if !errors.Is(err, plane.ErrExited) {
		t.Fatalf("error %v, want %v", err, plane.ErrExited)
	}
	if want := "address already in use"; !strings.Contains(err.Error(), want) {
		t.Fatalf("error %q does not say %q", err, want)
	}
}

// A starter may die at any instruction: the next one finds its process from the fork on, before the
// plane has locked its directory.
func TestI12APlaneIsFoundAsSoonAsItIsForked(t *testing.T) {
	c := planetest.Shared(t).Config // its address is taken, so this one ends by itself
	c.Dir = filepath.Join(t.TempDir(), "plane")
	log := filepath.Join(t.TempDir(), "log")
	first, err := plane.Start(t.Context(), c, plane.Options{LogFile: log, Env: []string{"GOMEMLIMIT=1GiB"}, MaxFiles: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if !plane.Alive(c.Dir) {
		t.Error("a plane that was just started is not alive")
	}
	second, err := plane.Start(t.Context(), c, plane.Options{LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Kill() }()
	limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", first.PID))
	if second.Adopted {
		if second.PID != first.PID {
			t.Errorf("process %d was adopted, not %d", second.PID, first.PID)
		}
		if want := "4096"; !strings.Contains(string(limits), want) && runtime.GOOS == "linux" {
			t.Errorf("limits without %s:\n%s", want, limits)
		}
	} else {
		// The first had ended before. The kernel closes the files of a process, and with them its lock, before the
		// parent gets to know of the end.
		if files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", first.PID)); len(files) > 0 {
			t.Error("two processes for one plane")
		}
	}
	if err := second.Wait(t.Context()); !errors.Is(err, plane.ErrExited) {
		t.Errorf("error %v, want %v", err, plane.ErrExited)
	}
	<-first.Exited()
	if want := "address already in use"; !strings.Contains(first.LastOutput(), want) {
		t.Errorf("%q does not say %q", first.LastOutput(), want)
	}
	if plane.Alive(c.Dir) {
		t.Error("a plane that has ended is alive")
	}
}

func TestArguments(t *testing.T) {
	c := plane.Config{Name: "n", Dir: "/d", Address: "127.0.0.1:1", ExternalHosts: []string{"h"},
		ServiceCIDR: "10.0.0.0/16", SimulatedNodes: true}
	want := "serve --data-dir /d --listen 127.0.0.1:1 --name n --external-host h --service-cidr 10.0.0.0/16 " +
		"--simulated-nodes"
	if got := strings.Join(c.Args(), " "); got != want {
		t.Fatalf("%s\nwant\n%s", got, want)
	}
}

// A process that was forked and never locks its directory delays its starter only as long as the starter wants.
func TestAdoptEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	f, err := os.OpenFile(filepath.Join(dir, "process"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the starter stops")
	cancel(reason)
	if p, err := plane.Adopt(ctx, plane.Config{Dir: dir}, plane.Options{}); p != nil || !errors.Is(err, reason) {
		t.Errorf("process %v, error %v", p, err)
	}
}
