package operator

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"atoll.dev/cli/terminal"
	"atoll.dev/rollout"
)

// TestARolloutIsDrivenThroughARealRepository drives the commands against a bare repository and a region's status.
func TestARolloutIsDrivenThroughARealRepository(t *testing.T) {
	var isDown atomic.Bool
	region := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if isDown.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer region.Close()
	world := newRepository(t)
	dir, clone, git, write := filepath.Dir(world.clone), world.clone, world.git, world.write
	atoll := func(args ...string) (string, error) {
		return execute(t.Context(), Rollout, terminal.Session{}, append(args, "--repo", clone)...)
	}
	status := func() (r rollout.Recorded) {
		t.Helper()
		out, err := atoll("status", "rollouts/next.yaml", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		if err != nil {
			t.Fatal(out, err)
		}
		return r
	}

	ca := filepath.Join(dir, "ca.pem")
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: region.Certificate().Raw})
	if err := os.WriteFile(ca, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	write("config/defaults.yaml", "git: {repository: https://example.com/p.git}\nversions: {atoll: '1'}\n")
	write("config/prod/environment.yaml", "sectors: [canary, main]\n")
	write("config/prod/regions/r1.yaml", "sector: canary\n")
	write("config/prod/regions/r2.yaml", "sector: main\n")
	write("rollouts/next.yaml", "environment: prod\nchange: {version: '2'}\nsettle: 1ms\n"+
		"gates: [{name: api, url: '"+region.URL+"'}]\n")
	world.commit("begin")
	if _, err := atoll("run", "rollouts/next.yaml", "--ca", os.DevNull); err == nil || !strings.Contains(err.Error(),
		"has no PEM certificate") {
		t.Errorf("got %v", err)
	}
	if _, err := atoll("run", "rollouts/next.yaml"); err == nil {
		t.Fatal("a branch that the remote does not have was accepted")
	}
	git(clone, "push", "-q", "origin", "main")
	if _, err := atoll("status", "rollouts/next.yaml"); err == nil || !strings.Contains(err.Error(), "has not begun") {
		t.Errorf("got %v", err)
	}
	write("charts.yaml", "environment: prod\nchange: {set: {git.revision: main}}\n"+
		"gates: [{name: api, url: '"+region.URL+"'}]\n")
	plan := []string{"plan", filepath.Join(clone, "charts.yaml"), "--config", filepath.Join(clone, "config")}
	head := git(clone, "rev-parse", "HEAD")
	if out, err := atoll(plan...); err != nil || !strings.Contains(out, "the revision main is the commit "+head) ||
		!strings.Contains(out, `git.revision: (none) -> "`+head+`"`) ||
		strings.Count(out, "   expected 10m0s, longest 1h0m0s, at the latest until ") != 2 {
		t.Errorf("the plan is %s, %v", out, err)
	}
	write("charts.yaml", "environment: prod\nchange: {revision: maine}\ngates: [{name: api, url: '"+region.URL+"'}]\n")
	if out, err := atoll(plan...); err == nil || !strings.Contains(err.Error(), "charts.yaml:2: change.revision: ") {
		t.Errorf("an unknown revision: %s, %v", out, err)
	}
	write("config/prod/regions/r2.yaml", "sector: main # not committed\n")
	if _, err := atoll("run", "rollouts/next.yaml"); err == nil || !strings.Contains(err.Error(),
		"config/prod/regions/r2.yaml:1: the checkout differs from the branch: this is not committed") {
		t.Errorf("got %v", err)
	}
	git(clone, "checkout", "-q", "--", ".")

	isDown.Store(true)
	out, err := atoll("run", "rollouts/next.yaml", "--interval", "5ms", "--ca", ca)
	if err == nil || !strings.Contains(err.Error(), "r1: gate api: ") || !strings.Contains(err.Error(), "answers 503") {
		t.Fatal(out, err)
	}
	if r := status(); r.State.Phase != rollout.Halted || r.Radius.Regions != 1 {
		t.Errorf("%v, radius %v", r.State, r.Radius)
	}
	isDown.Store(false)
	if out, err := atoll("resume", "rollouts/next.yaml"); err != nil || !strings.Contains(out, "Running") {
		t.Fatal(out, err)
	}
	out, err = atoll("run", "rollouts/next.yaml", "--interval", "5ms", "--ca", ca)
	if err != nil || !strings.Contains(out,
		"Done: 2 regions and 0 management clusters were changed") {
		t.Fatal(out, err)
	}
	git(clone, "pull", "-q", "--ff-only", "origin", "main")
	rendered, err := os.ReadFile(filepath.Join(clone, "deploy/prod/r2/region.yaml"))
	if err != nil || !strings.Contains(string(rendered), `atoll: "2"`) {
		t.Errorf("%s, %v", rendered, err)
	}
	write("config/prod/regions/r1.yaml", "sector: canary\nversions:\n  atoll: '2.0.1'\n")
	world.commit("by hand")
	world.push()
	head = git(clone, "rev-parse", "HEAD")
	const byHand = `config/prod/regions/r1.yaml:3: versions.atoll of r1 is "2.0.1"; the rollout had set "2"`
	if out, err := atoll("revert", "rollouts/next.yaml"); err == nil || !strings.Contains(err.Error(), byHand) ||
		!strings.Contains(err.Error(), "revert FILE --force") {
		t.Errorf("a revert that meets a hand edit: %s, %v", out, err)
	}
	if got := git(world.remote, "rev-parse", "main"); got != head {
		t.Errorf("the refused revert has pushed %s", got)
	}
	if out, err := atoll("revert", "rollouts/next.yaml", "--force"); err != nil || !strings.Contains(out, "Reverted") {
		t.Fatal(out, err)
	}
	git(clone, "pull", "-q", "--ff-only", "origin", "main")
	if data, err := os.ReadFile(filepath.Join(clone, "config/prod/regions/r1.yaml")); err != nil || string(data) !=
		"sector: canary\n" {
		t.Errorf("after the revert: %q, %v", data, err)
	}
}
