package e2e

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/rollout"
	"atoll.dev/test/localtest"
	"atoll.dev/test/testsite"
)

// driverWorld is a remote repository with a rollout, and two processes that drive it, each from a clone of its own.
type driverWorld struct {
	t       *testing.T
	dir     string
	drivers [2]*driverProcess
}

// driverProcess is a process `atoll rollout run`. ended is closed when it has ended, with err.
type driverProcess struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	ended chan struct{}
	err   error
}

const (
	drivenRollout = "rollouts/next.yaml"
	regionsEach   = 3 // in each of the two sectors
)

func newDriverWorld(t *testing.T) *driverWorld {
	localtest.Bin(t)
	healthy := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(healthy.Close)
	w := &driverWorld{t: t, dir: t.TempDir()}
	w.git("init", "--quiet", "--bare", "-b", "main", "remote")
	w.git("clone", "--quiet", "remote", "clone0")
	files := map[string]string{
		"config/defaults.yaml":         "git: {repository: https://git.example.com/p.git}\nversions: {atoll: '1'}\n",
		"config/prod/environment.yaml": "sectors: [canary, main]\n",
		drivenRollout: "environment: prod\nchange: {version: '2'}\nsettle: 1ms\nmaxInFlight: 1\n" +
			"gates: [{name: api, url: '" + healthy.URL + "'}]\n",
	}
	for i := range 2 * regionsEach {
		sector := []string{"canary", "main"}[i/regionsEach]
		files[fmt.Sprintf("config/prod/regions/r%d.yaml", i)] = "sector: " + sector + "\n"
	}
	for name, text := range files {
		file := filepath.Join(w.dir, "clone0", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, file, []byte(text))
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: healthy.Certificate().Raw})
	write(t, filepath.Join(w.dir, "ca.pem"), ca)
	w.git("-C", "clone0", "add", ".")
	w.git("-C", "clone0", "commit", "--quiet", "-m", "begin")
	w.git("-C", "clone0", "push", "--quiet", "origin", "HEAD:main")
	w.git("clone", "--quiet", "remote", "clone1")
	return w
}

func (w *driverWorld) git(args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = w.dir, environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// start starts one of the two drivers.
func (w *driverWorld) start(number int) {
	w.t.Helper()
	atoll, _ := localtest.Bin(w.t)
	d := &driverProcess{ended: make(chan struct{})}
	clone := filepath.Join(w.dir, fmt.Sprint("clone", number))
	d.cmd = exec.Command(atoll, "rollout", "run", drivenRollout, "--repo", clone, "--interval", "10ms", "--ca",
		filepath.Join(w.dir, "ca.pem"))
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr = environment(), &d.out, &d.out
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	w.drivers[number] = d
	w.t.Cleanup(func() { d.kill() })
}

// kill ends a driver without a chance to clean up.
func (d *driverProcess) kill() {
	_ = d.cmd.Process.Kill() // it may have ended
	<-d.ended
}

// records returns the record of the rollout in each commit, the oldest first.
func (w *driverWorld) records() (all []rollout.Recorded) {
	w.t.Helper()
	name := rollout.RecordPath(drivenRollout)
	for _, commit := range strings.Fields(w.git("-C", "remote", "log", "--reverse", "--format=%H", "main", "--", name)) {
		var r rollout.Recorded
		if err := json.Unmarshal([]byte(w.git("-C", "remote", "show", commit+":"+name)), &r); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// TestTwoDriversNeverActAtOnce runs two drivers of one rollout as processes, and kills one of them again and again
// while the other goes on. Each step is taken once: each region is changed by one commit, and each commit has one step
// more than the commit before and no more in flight than is permitted.
func TestTwoDriversNeverActAtOnce(t *testing.T) {
	t.Parallel()
	w := newDriverWorld(t)
	w.start(0)
	w.start(1)
	victim, kills, seen := 0, 0, 0
	testsite.Eventually(t, "the rollout is done", func() error {
		records := w.records()
		if len(records) == 0 {
			return errors.New("it has not begun")
		}
		last := records[len(records)-1]
		if last.State.Phase.IsEnd() {
			return nil
		}
		if len(records) > seen && last.Radius.Regions > 0 { // it goes on since the last kill
			seen = len(records)
			w.drivers[victim].kill()
			w.start(victim)
			victim, kills = 1-victim, kills+1
		}
		return fmt.Errorf("phase %s after %d steps and %d kills", last.State.Phase, len(records), kills)
	})
	for number, d := range w.drivers {
		if <-d.ended; d.err != nil || !strings.Contains(d.out.String(), "Done: 6 regions") {
			t.Errorf("driver %d ends with %v: %s", number, d.err, &d.out)
		}
	}
	records := w.records()
	for i, r := range records {
		if r.State.InFlight() > 1 {
			t.Errorf("step %d has %d in flight", i, r.State.InFlight())
		}
		if len(r.History) != i+1 {
			t.Errorf("step %d has a history of %d steps: %+v", i, len(r.History), r.History)
		}
	}
	if last := records[len(records)-1]; last.State.Phase != rollout.Done || kills == 0 {
		t.Errorf("the rollout is %s after %d kills", last.State.Phase, kills)
	}
	for i := range 2 * regionsEach {
		file := fmt.Sprintf("config/prod/regions/r%d.yaml", i)
		if n := w.git("-C", "remote", "rev-list", "--count", "main", "--", file); n != "2" {
			t.Errorf("%s is in %s commits, want that of the beginning and that of its step", file, n)
		}
	}
	t.Logf("%d steps, %d kills", len(records), kills)
}
