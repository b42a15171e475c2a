package e2e

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/internal/quick"
	"atoll.dev/local"
	"atoll.dev/test/localtest"
)

func TestASecondUpAddsClusters(t *testing.T) {
	r := localtest.Restarted(t)
	var before local.Status
	localtest.Eventually(t, 3*time.Minute, func() error { // a probe of the status may find a busy process
		if before = r.Status(); !before.Ready || before.Processes[0].Name != "supervisor" {
			return fmt.Errorf("status: %+v", before)
		}
		return nil
	})
	if out := r.Atoll("up", "--detach"); !strings.Contains(out, "already running") {
		t.Errorf("second up: %s", out)
	}
	api := r.API()
	var alone platform.ManagementCluster
	localtest.Eventually(t, 3*time.Minute, func() (err error) {
		if alone, err = api.ManagementCluster(t.Context(), "management-01"); err == nil &&
			alone.Capacity["planes"] == 0 {
			err = fmt.Errorf("%+v", alone)
		}
		return err
	})
	if out := r.Atoll("up", "--detach", "--management-clusters", "2"); !strings.Contains(out, "management-02-agent") {
		t.Errorf("up with two: %s", out)
	}
	if out := r.Atoll("mc", "list"); !strings.Contains(out, "management-01") ||
		!strings.Contains(out, "management-02") {
		t.Errorf("mc list: %s", out)
	}
	localtest.Eventually(t, 3*time.Minute, func() error { // they share the machine
		list, err := api.ManagementClusters(t.Context())
		if err == nil && (len(list) != 2 || !maps.Equal(list[0].Capacity, list[1].Capacity) ||
			list[0].Capacity["planes"] > max(alone.Capacity["planes"]/2, 1)) {
			err = fmt.Errorf("%+v, alone %v", list, alone.Capacity)
		}
		return err
	})
	if out, err := r.Try("up", "--detach", "--management-clusters", "1"); err == nil || !strings.Contains(err.Error(),
		"mc delete") {
		t.Errorf("up with fewer: %v %s", err, out)
	}
	if out, err := r.Try("up", "--detach", "--region", "other"); err == nil || !strings.Contains(err.Error(),
		"--home") {
		t.Errorf("up of another region: %v %s", err, out)
	}
	for _, p := range before.Processes {
		if now := r.Process(p.Name); now.PID != p.PID {
			t.Errorf("%s was restarted: pid %d, then %d", p.Name, p.PID, now.PID)
		}
	}
	r.Atoll("mc", "delete", "management-02")
	localtest.Eventually(t, 3*time.Minute, func() error {
		for _, p := range r.Status().Processes {
			if strings.HasPrefix(p.Name, "management-02") {
				return fmt.Errorf("%s is still kept", p.Name)
			}
		}
		if left := localtest.Processes(r.Home + "/management/management-02"); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
}

func TestI12TheRegionServesWithoutItsSupervisorAndUpAdoptsIt(t *testing.T) {
	r := localtest.Restarted(t)
	before := r.Status()
	localtest.Kill(t, r.Process("supervisor").PID)
	if status, _, body := r.Curl("/prod/api/v0/management_clusters"); status != 200 {
		t.Fatalf("without a supervisor: %d %s", status, body)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		if s := r.Status(); s.Processes[0].State != "stopped" || !s.Ready {
			return fmt.Errorf("status without a supervisor: %+v", s)
		}
		return nil
	})
	r.Up()
	for _, p := range before.Processes {
		now := r.Process(p.Name)
		if adopted := now.PID == p.PID; adopted != (p.Name != "supervisor") {
			t.Errorf("%s: pid %d, then %d", p.Name, p.PID, now.PID)
		}
	}
	// The new supervisor watches adopted processes.
	broker := r.Process("broker")
	localtest.Kill(t, broker.PID)
	localtest.Eventually(t, 3*time.Minute, func() error {
		// A start that fails, as on a busy machine, is one more restart.
		if now := r.Process("broker"); now.PID == broker.PID || now.State != "ready" || now.Restarts <= broker.Restarts {
			return fmt.Errorf("broker: %+v", now)
		}
		return nil
	})
}

func TestI12UpContinuesAfterAKillOfAllProcesses(t *testing.T) {
	quick.Slow(t, "kills a whole region while it starts")
	r := localtest.Restarted(t)
	w, _, err := r.API().ApplyWork(t.Context(), "management-01", localtest.ConfigMapWork("survives",
		map[string]map[string]string{"survives": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Status().Processes { // the supervisor is the first
		if p.PID != 0 {
			localtest.Kill(t, p.PID)
		}
	}
	r.Up()
	localtest.Eventually(t, 3*time.Minute, func() error {
		_, err := r.TryKubectl("management-01", "get", "configmap", "survives")
		return err
	})
	if _, err := r.API().Work(t.Context(), work.ID(w.ID)); err != nil {
		t.Errorf("an acknowledged work: %v", err)
	}
}

// The tests from here on leave the region stopped, so that it starts once for all of them.
func TestDownStopsOnlyItsOwnProcessesInTime(t *testing.T) {
	r := localtest.Restarted(t)
	bystander := exec.Command("sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { bystander.Process.Kill(); bystander.Wait() }()
	begun := time.Now()
	r.Down()
	// After 15 s, down kills what has not ended. The rest is for programs to start and disks to write on a busy machine.
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("down took %s", took)
	}
	if left := localtest.Processes(r.Home); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process of somebody else: %v", err)
	}
	if s := r.Status(); s.Ready {
		t.Errorf("a stopped region says that it is ready: %+v", s)
	}
}

func TestATakenPortIsAnErrorThatNamesItsHolder(t *testing.T) {
	r := localtest.Stopped(t)
	address := strings.TrimPrefix(r.Env["ATOLL_ENDPOINT"], "https://")
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Try("up", "--detach")
	l.Close()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) ||
		!strings.Contains(err.Error(), "platform") {
		t.Errorf("up with a taken port: %v", err)
	}
}

// An `up` in the foreground runs the region until Ctrl-C.
func TestCtrlCStopsTheRegion(t *testing.T) {
	quick.Slow(t, "interrupts a region of its own")
	r := localtest.Stopped(t)
	up := localtest.Command(r.Home, "up")
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	up.Stdout, up.Stderr = out, out
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() string { data, _ := os.ReadFile(out.Name()); return string(data) }
	localtest.Eventually(t, 3*time.Minute, func() error {
		if !strings.Contains(read(), "Ctrl-C") {
			return fmt.Errorf("up says: %s", read())
		}
		return nil
	})
	up.Process.Signal(os.Interrupt)
	if err := up.Wait(); err != nil {
		t.Errorf("up after Ctrl-C: %v\n%s", err, read())
	}
	if !strings.Contains(read(), "stopped after") {
		t.Errorf("up says: %s", read())
	}
	if left := localtest.Processes(r.Home); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func pause(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
