package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgsession"
	"atoll.dev/local"
	"atoll.dev/test/localtest"
	"atoll.dev/test/testsite"
)

// declaredRegion is a region, and the repository that declares it as r1.
type declaredRegion struct {
	*localtest.Region
	repository string
}

const (
	oneCluster = `sector: main
aws: {accountId: "100000000001"}
managementClusters:
  mc01:
    aws: {accountId: "200000000001"}
`
	twoClusters = oneCluster + "  mc02:\n    aws: {accountId: \"200000000002\"}\n"
)

func newDeclaredRegion(t *testing.T) declaredRegion {
	d := declaredRegion{localtest.Undeclared(t), t.TempDir()}
	d.git("init", "--quiet", "-b", "main")
	d.write("config/defaults.yaml", "git: {repository: https://git.example.com/platform.git}\n"+
		"managementCluster: {capacity: {planes: 10, memory_mib: 4000}}\n") // and not a share of the machine
	d.write("config/prod/environment.yaml", "sectors: [main]\n")
	d.declare(oneCluster)
	return d
}

// environment returns the environment variables of each program of the test: the user's configuration of Git is left
// out.
func environment() []string {
	env := append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull)
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		env = append(env, "GIT_"+who+"_NAME=ann", "GIT_"+who+"_EMAIL=ann@example.com")
	}
	return env
}

func (d declaredRegion) git(args ...string) {
	d.T.Helper()
	cmd := exec.Command("git", append([]string{"-C", d.repository}, args...)...)
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		d.T.Fatalf("git %v: %v: %s", args, err, out)
	}
}

func (d declaredRegion) write(name, text string) {
	d.T.Helper()
	file := filepath.Join(d.repository, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		d.T.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		d.T.Fatal(err)
	}
}

// declare writes the file of the region.
func (d declaredRegion) declare(text string) { d.write("config/prod/regions/r1.yaml", text) }

// render renders the tree.
func (d declaredRegion) render() {
	d.T.Helper()
	d.Atoll("config", "render", "--config", filepath.Join(d.repository, "config"), "--out",
		filepath.Join(d.repository, "deploy"))
}

// commit declares a region and commits what that renders.
func (d declaredRegion) commit(message, region string) {
	d.T.Helper()
	d.declare(region)
	d.render()
	d.git("add", ".")
	d.git("commit", "--quiet", "-m", message)
}

// apply runs `region apply`.
func (d declaredRegion) apply(args ...string) (string, error) {
	return d.Try(append([]string{"region", "apply", "r1", "--from", filepath.Join(d.repository, "deploy")}, args...)...)
}

// drift returns what `region status` shows, as NAME DECLARED RENDERED RUNNING, and the values without effect.
func (d declaredRegion) drift() (rows []string, notApplied []local.Unapplied) {
	d.T.Helper()
	out, err := d.Try("region", "status", "r1", "--from", filepath.Join(d.repository, "deploy"), "-o", "json")
	var status struct {
		Drift       []local.Drift
		NotRendered []string
		NotApplied  []local.Unapplied
	}
	if failed := json.Unmarshal([]byte(out), &status); failed != nil {
		d.T.Fatalf("region status: %s, %v, %v", out, failed, err)
	}
	for _, x := range status.Drift {
		rows = append(rows, strings.Join([]string{x.What, x.Declared, x.Rendered, x.Running}, " "))
	}
	if (err != nil) != (len(status.Drift)+len(status.NotRendered) > 0) {
		d.T.Errorf("region status ends with %v and shows %s", err, out)
	}
	return rows, status.NotApplied
}

// follow starts `region watch`, and returns a function that waits for its next event of a commit.
func (d declaredRegion) follow(args ...string) (next func() local.WatchEvent) {
	d.T.Helper()
	cmd := localtest.Command(d.Home, append([]string{"region", "watch", "r1", "--repo", d.repository, "--interval",
		"100ms", "-o", "json"}, args...)...)
	cmd.Env = environment()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		d.T.Fatal(err)
	}
	events := make(chan local.WatchEvent)
	go func() {
		defer close(events)
		for decoder := json.NewDecoder(out); ; {
			var e local.WatchEvent
			if decoder.Decode(&e) != nil {
				return
			}
			events <- e
		}
	}()
	d.T.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		for range events {
		}
		if err := cmd.Wait(); err != nil {
			d.T.Errorf("the watch ends with %v: %s", err, errs.String())
		}
	})
	return func() (e local.WatchEvent) {
		d.T.Helper()
		select {
		case e, isOpen := <-events:
			if !isOpen {
				d.T.Fatal("the watch has ended")
			}
			return e
		case <-time.After(testsite.HangLimit):
			d.T.Fatalf("the watch shows nothing within %s", testsite.HangLimit)
		}
		return e
	}
}

// schemas returns the names of the schemas in the databases of the region, as `describe-program` names them.
func (d declaredRegion) schemas() (parts []string) {
	d.T.Helper()
	address, _, err := local.Home{Dir: d.Home}.PlatformStore()
	if err != nil {
		d.T.Fatal(err)
	}
	for _, database := range []string{"platform", "clm", "maestro"} {
		conn, err := pgsession.Connect(d.T.Context(), strings.ReplaceAll(address, "platform", database))
		if err != nil {
			d.T.Fatal(err)
		}
		rows, err := conn.Query(d.T.Context(), "select replace(part, 'service', $1) from schema_version", database)
		if err != nil {
			d.T.Fatal(err)
		}
		of, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err := errors.Join(err, conn.Close(d.T.Context())); err != nil {
			d.T.Fatal(err)
		}
		parts = append(parts, of...)
	}
	return parts
}

// writeVersion adds programs of a version to a directory of programs: they are those of the test, and say that they
// are of the version. Of the schemas of their databases they know what change makes of them.
func (d declaredRegion) writeVersion(dir, version string, change func(schemas map[string]int)) {
	d.T.Helper()
	described, err := exec.Command(localtest.Services(d.T), "describe-program").Output()
	var description local.ProgramDescription
	if err == nil {
		err = json.Unmarshal(described, &description)
	}
	if err != nil {
		d.T.Fatal(err)
	}
	description.Version = version
	change(description.Schemas)
	described, err = json.Marshal(description)
	if err != nil {
		d.T.Fatal(err)
	}
	for _, part := range d.schemas() {
		if description.Schemas[part] == 0 {
			d.T.Errorf("describe-program does not say the version of the schema %s: %v", part, description.Schemas)
		}
	}
	below := filepath.Join(dir, version)
	if err := os.MkdirAll(below, 0o755); err != nil {
		d.T.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = describe-program ]; then echo '%s'; else exec %s \"$@\"; fi\n",
		described, localtest.Services(d.T))
	if err := os.WriteFile(filepath.Join(below, "atoll"), []byte(script), 0o755); err != nil {
		d.T.Fatal(err)
	}
	if err := os.Symlink(os.Getenv("ATOLL_KUBE_BIN"), filepath.Join(below, "atoll-kube")); err != nil {
		d.T.Fatal(err)
	}
}

// startedWith returns what a process of the region was started with: its arguments and variables.
func (d declaredRegion) startedWith(process string) string {
	d.T.Helper()
	var text []byte
	for _, file := range []string{"cmdline", "environ"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", d.Process(process).PID, file))
		if err != nil {
			d.T.Fatal(err)
		}
		text = append(text, data...)
	}
	return strings.ReplaceAll(string(text), "\x00", " ")
}

// TestADeclaredRegionConverges starts a region from its rendered files, adds a management cluster to the tree, applies
// that, and then lets a watch follow the repository: the cluster goes again, the version and the log level change, and
// a mistake and a version without programs change nothing.
func TestADeclaredRegionConverges(t *testing.T) {
	t.Parallel()
	d := newDeclaredRegion(t)
	d.commit("One management cluster", oneCluster)
	if out, err := d.apply(); err != nil || !strings.Contains(out, "region r1 is as declared") {
		t.Fatal(out, err)
	}
	expectRows := func(want ...string) {
		t.Helper()
		testsite.Eventually(t, "the differences of the region", func() error { // a busy agent is not Ready for a moment
			if rows, _ := d.drift(); strings.Join(rows, "\n") != strings.Join(want, "\n") {
				return fmt.Errorf("region status shows %q, want %q", rows, want)
			}
			return nil
		})
	}
	expectRows()
	if _, notApplied := d.drift(); len(notApplied) > 0 {
		t.Errorf("after the apply, the region differs: %v", notApplied)
	}

	d.declare(twoClusters)
	expectRows("mc02-r1 Ready absent absent")
	d.render()
	expectRows("mc02-r1 Ready Ready absent")
	if out, err := d.apply(); err != nil {
		t.Fatal(out, err)
	}
	expectRows()
	testsite.Eventually(t, "the management clusters are Ready", func() error {
		if out := d.Atoll("mc", "list"); strings.Count(out, "Ready") != 2 || !strings.Contains(out, "mc02-r1") {
			return fmt.Errorf("the management clusters are %s", out)
		}
		return nil
	})

	programs := t.TempDir()
	d.writeVersion(programs, "2.0.0", func(map[string]int) {})
	d.writeVersion(programs, "1.0.0", func(schemas map[string]int) { schemas["clm"]-- })
	d.commit("Two", twoClusters)
	next := d.follow("--programs", programs)
	expect := func(result local.WatchResult, subject, text string) {
		t.Helper()
		if e := next(); e.Result != result || e.Subject != subject || !strings.Contains(e.Error, text) {
			t.Errorf("the watch shows %+v, want %s %q %q", e, result, subject, text)
		}
	}
	expect(local.Applied, "Two", "")
	d.commit("One again", oneCluster)
	expect(local.Applied, "One again", "")
	if out := d.Atoll("mc", "list"); strings.Contains(out, "mc02-r1") {
		t.Errorf("the removed management cluster is there: %s", out)
	}
	const newer = oneCluster + "versions: {atoll: 2.0.0}\nvalues: {global: {logLevel: debug, other: 1}}\n"
	d.commit("Another version", newer)
	expect(local.Applied, "Another version", "")
	expectRows()
	for _, process := range []string{"clm", "platform", "mc01-r1-hosting"} {
		if with := d.startedWith(process); !strings.Contains(with, "--log-level debug") ||
			!strings.Contains(with, "ATOLL_VERSION=2.0.0") {
			t.Errorf("%s runs with %s", process, with)
		}
	}
	if _, notApplied := d.drift(); len(notApplied) != 2 || notApplied[0].Reason != "no chart is installed" {
		t.Errorf("values without effect: %v", notApplied)
	}
	before := d.startedWith("clm")
	d.commit("An older version", oneCluster+"versions: {atoll: 1.0.0}\n")
	expect(local.Failed, "An older version", `config/prod/regions/r1.yaml:6: versions.atoll is "1.0.0": the databases`)
	d.commit("A version without programs", oneCluster+"versions: {atoll: 3.0.0}\n")
	expect(local.Failed, "A version without programs", "put atoll and atoll-kube of 3.0.0 into "+programs)
	d.declare("sektor: main\n")
	d.git("commit", "--quiet", "-a", "-m", "A mistake")
	expect(local.Refused, "A mistake", "config/prod/regions/r1.yaml:1: unknown key sektor")
	if after := d.startedWith("clm"); after != before {
		t.Errorf("what was refused has replaced clm: %s", after)
	}
}
