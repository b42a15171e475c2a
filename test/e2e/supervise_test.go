package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestUpAgainSaysThatItRunsAndAddsClusters(t *testing.T) {
	r := newRegion(t)
	before := r.status()
	if !before.Ready || before.Processes[0].Name != "supervisor" {
		t.Fatalf("status: %+v", before)
	}
	if out := r.atoll("up", "--detach"); !strings.Contains(out, "already running") {
		t.Errorf("second up: %s", out)
	}
	if out := r.atoll("up", "--detach", "--management-clusters", "2"); !strings.Contains(out, "management-02-agent") {
		t.Errorf("up with two: %s", out)
	}
	if out := r.atoll("mc", "list"); !strings.Contains(out, "management-01") || !strings.Contains(out, "management-02") {
		t.Errorf("mc list: %s", out)
	}
	if out, err := r.try("up", "--detach", "--management-clusters", "1"); err == nil || !strings.Contains(err.Error(), "mc delete") {
		t.Errorf("up with fewer: %v %s", err, out)
	}
	if out, err := r.try("up", "--detach", "--region", "other"); err == nil || !strings.Contains(err.Error(), "--home") {
		t.Errorf("up of another region: %v %s", err, out)
	}
	for _, p := range before.Processes {
		if now := r.process(p.Name); now.PID != p.PID {
			t.Errorf("%s was restarted: pid %d, then %d", p.Name, p.PID, now.PID)
		}
	}
	r.atoll("mc", "delete", "management-02")
	eventually(t, 60*time.Second, func() error {
		for _, p := range r.status().Processes {
			if strings.HasPrefix(p.Name, "management-02") {
				return fmt.Errorf("%s is still kept", p.Name)
			}
		}
		if left := processes(r.home + "/management/management-02"); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
}

func TestI12WithTheSupervisorKilledTheRegionServesAndUpAdoptsIt(t *testing.T) {
	r := newRegion(t)
	before := r.status()
	kill(t, r.process("supervisor").PID)
	if status, _, body := r.curl("/prod/api/v0/management_clusters"); status != 200 {
		t.Fatalf("without a supervisor: %d %s", status, body)
	}
	if s := r.status(); s.Processes[0].State != "stopped" || !s.Ready {
		t.Errorf("status without a supervisor: %+v", s)
	}
	r.up()
	for _, p := range before.Processes {
		now := r.process(p.Name)
		if adopted := now.PID == p.PID; adopted != (p.Name != "supervisor") {
			t.Errorf("%s: pid %d, then %d", p.Name, p.PID, now.PID)
		}
	}
	// The new supervisor watches what it adopted.
	broker := r.process("broker")
	kill(t, broker.PID)
	eventually(t, 60*time.Second, func() error {
		if now := r.process("broker"); now.PID == broker.PID || now.State != "ready" || now.Restarts != broker.Restarts+1 {
			return fmt.Errorf("broker: %+v", now)
		}
		return nil
	})
}

func TestI12AfterAKillOfEverythingUpGoesOn(t *testing.T) {
	r := newRegion(t)
	w, _, err := r.api().ApplyWork(t.Context(), "management-01", configMapWork("survives", map[string]map[string]string{"survives": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.status().Processes { // the supervisor is the first
		kill(t, p.PID)
	}
	r.up()
	eventually(t, 60*time.Second, func() error {
		_, err := r.tryKubectl("management-01", "get", "configmap", "survives")
		return err
	})
	if _, err := r.api().Work(t.Context(), w.ID); err != nil {
		t.Errorf("an acknowledged work: %v", err)
	}
}

func TestATakenPortIsAnErrorThatNamesItsHolder(t *testing.T) {
	r := newRegion(t)
	address := strings.TrimPrefix(r.env["ATOLL_ENDPOINT"], "https://")
	r.atoll("down")
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.try("up", "--detach")
	l.Close()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) || !strings.Contains(err.Error(), "platform") {
		t.Errorf("up with a taken port: %v", err)
	}
	r.up()
}

func TestDownStopsOnlyItsOwnAndWithinItsTime(t *testing.T) {
	r := newRegion(t)
	bystander := exec.Command("sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { bystander.Process.Kill(); bystander.Wait() }()
	begun := time.Now()
	r.atoll("down")
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("down took %s", took)
	}
	if left := processes(r.home); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process of somebody else: %v", err)
	}
	if s := r.status(); s.Ready {
		t.Errorf("a stopped region says that it is ready: %+v", s)
	}
	r.up()
}

func TestCtrlCOfUpIsDown(t *testing.T) {
	bin(t)
	home, err := os.MkdirTemp("", "atoll-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { command(home, "down", "--purge").Run() })
	up := command(home, "up")
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	up.Stdout, up.Stderr = out, out
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() string { data, _ := os.ReadFile(out.Name()); return string(data) }
	eventually(t, 60*time.Second, func() error {
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
	if left := processes(home); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
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
