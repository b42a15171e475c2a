package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
)

const (
	regionFile = "config/production/regions/r1.yaml"
	oneCluster = `sector: canary
aws: {accountId: "100000000001"}
managementClusters:
  mc01:
    aws: {accountId: "200000000001"}
`
	twoClusters = oneCluster + "  mc02:\n    aws: {accountId: \"200000000002\"}\n"
)

// watchedRepository is a bare repository, a clone that adds commits to it, and the configuration that is in it.
type watchedRepository struct {
	t      *testing.T
	bare   string
	clone  gitrepo.Branch
	config map[string][]byte // by path in the repository
	files  map[string][]byte // all files of the newest commit
}

func newWatchedRepository(t *testing.T) *watchedRepository {
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	for _, variable := range []string{"AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"} {
		t.Setenv("GIT_"+variable, "ann@example.com")
	}
	r := &watchedRepository{t: t, bare: filepath.Join(t.TempDir(), "bare"), files: map[string][]byte{}}
	if err := os.Mkdir(r.bare, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("init", "--quiet", "--bare", "--template=")
	const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904" // git has it in each repository
	r.git("update-ref", "refs/heads/main", r.git("commit-tree", emptyTree, "-m", "begin"))
	r.config = map[string][]byte{
		"config/defaults.yaml":               []byte("git: {repository: https://git.example.com/platform.git}\n"),
		"config/production/environment.yaml": []byte("sectors: [canary]\n"),
		"config/production/regions/r0.yaml":  []byte("sector: canary\naws: {accountId: \"100000000000\"}\n"),
	}
	clone, err := gitrepo.Mirror(t.Context(), filepath.Join(t.TempDir(), "clone"), r.bare, "main")
	if err != nil {
		t.Fatal(err)
	}
	r.clone = clone
	return r
}

func (r *watchedRepository) git(args ...string) string {
	r.t.Helper()
	out, err := exec.Command("git", append([]string{"-C", r.bare}, args...)...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit adds a commit with these files, and with no other ones, to the newest commit of the branch.
func (r *watchedRepository) commit(subject string, files map[string][]byte) string {
	r.t.Helper()
	head, err := r.clone.Head(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	changed := maps.Clone(files)
	for name := range r.files {
		if _, stays := files[name]; !stays {
			changed[name] = nil
		}
	}
	commit, err := r.clone.Add(r.t.Context(), head, changed, subject)
	if err != nil {
		r.t.Fatal(err)
	}
	r.files = files
	return commit
}

// forcePush sets the branch to another commit, whose files are given.
func (r *watchedRepository) forcePush(commit string, files map[string][]byte) {
	r.t.Helper()
	r.git("update-ref", "refs/heads/main", commit)
	r.files = files
}

// tree returns the configuration with another file of region r1 ("": without one), and the files that it renders.
func (r *watchedRepository) tree(region string) (config, all map[string][]byte) {
	r.t.Helper()
	config = maps.Clone(r.config)
	if region != "" {
		config[regionFile] = []byte(region)
	}
	below := fstest.MapFS{}
	for name, data := range config {
		below[strings.TrimPrefix(name, "config/")] = &fstest.MapFile{Data: data}
	}
	fleet, err := gitops.Load(below, "config")
	if err != nil {
		r.t.Fatal(err)
	}
	rendered, err := gitops.Render(fleet)
	if err != nil {
		r.t.Fatal(err)
	}
	all = maps.Clone(config)
	for name, data := range rendered {
		all["deploy/"+name] = data
	}
	return config, all
}

// watched is a watch that runs, with a region that does nothing but remember what was applied.
type watched struct {
	t       *testing.T
	ctx     context.Context
	events  chan WatchEvent
	applied []names    // names of the management clusters, for each apply that succeeded
	fail    chan error // each fails one apply
}

// watch runs a watch of region r1 until stop.
func (r *watchedRepository) watch(t *testing.T, home Home, accept string) (*watched, func()) {
	t.Helper()
	w, unlock, err := home.OpenWatch(t.Context(), r.bare, "main")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	seen := &watched{t: t, ctx: ctx, events: make(chan WatchEvent), fail: make(chan error, 1)}
	w.Region, w.Config, w.Rendered, w.Accept = "r1", "config", "deploy", accept
	w.Apply = func(_ context.Context, d gitops.Declaration) error {
		select {
		case err := <-seen.fail:
			return err
		default:
			seen.applied = append(seen.applied, clusterNames(d))
			return nil
		}
	}
	w.Show = func(e WatchEvent) {
		select {
		case seen.events <- e:
		case <-ctx.Done():
		}
	}
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	return seen, func() { cancel(); <-ended; unlock() }
}

// expect waits for the next event and compares it. Each of texts is in its error.
func (w *watched) expect(result WatchResult, commit string, texts ...string) {
	w.t.Helper()
	select {
	case e := <-w.events:
		if e.Result != result || e.Commit != commit || (e.Error == "") != (len(texts) == 0) {
			w.t.Fatalf("got %+v, want %s of %s", e, result, commit)
		}
		for _, text := range texts {
			if !strings.Contains(e.Error, text) {
				w.t.Errorf("got %q, want %q", e.Error, text)
			}
		}
	case <-w.ctx.Done():
		w.t.Fatalf("no event in an hour; want %s of %s", result, commit)
	}
}

func TestAWatchAppliesGoodCommitsAndNothingOfOthers(t *testing.T) {
	r := newWatchedRepository(t)
	home := Home{Dir: filepath.Join(t.TempDir(), "r1")}
	synctest.Test(t, func(t *testing.T) {
		r.t = t
		_, without := r.tree("")
		config1, one := r.tree(oneCluster)
		_, two := r.tree(twoClusters)

		begin := r.commit("no region", without)
		w, stop := r.watch(t, home, "")
		defer stop()
		w.expect(Undeclared, begin, "the tree declares no region r1 yet")
		first := r.commit("one cluster", one)
		w.expect(Applied, first)

		wrong := maps.Clone(one)
		wrong[regionFile] = []byte(strings.Replace(twoClusters, "mc02:", "mc02: {sektor: x}\n  mc03:", 1))
		w.expect(Refused, r.commit("a mistake", wrong), regionFile+":6: ", "sektor")
		stale := maps.Clone(two)
		maps.DeleteFunc(stale, func(name string, _ []byte) bool { return strings.HasPrefix(name, "deploy/") })
		for name, data := range one {
			if strings.HasPrefix(name, "deploy/") {
				stale[name] = data
			}
		}
		w.expect(Refused, r.commit("not rendered", stale), "deploy/production/r1/region.yaml:", "mc02-r1",
			"deploy/production/r1/management-clusters/mc02/root.yaml:1: the file is missing", "atoll config render")
		w.expect(Refused, r.commit("nothing rendered", config1), "deploy/production/r0/region.yaml:1: the file is missing")
		charts := maps.Clone(two)
		charts["deploy/charts/shared/a/values.schema.json"] = []byte(`{"required": ["host"]}`)
		w.expect(Refused, r.commit("a chart refuses the values", charts), regionFile+":4: the chart deploy/charts/shared/a",
			"missing property 'host'")
		passed := r.commit("passed over", one)
		second := r.commit("two clusters", two)
		w.expect(PassedOver, passed)
		w.expect(Applied, second)

		r.forcePush(first, one)
		w.expect(Refused, first, "the history of main was rewritten", "--accept "+first[:12])
		w.expect(Refused, r.commit("on the rewritten history", two), "the history of main was rewritten")
		r.forcePush(second, two)
		w.expect(Applied, second)

		w.expect(Undeclared, r.commit("removed", without), "the tree declares no region r1 any more", "nothing is purged",
			"--home "+home.Dir)
		w.fail <- errors.New("mc02-r1 hosts 2 clusters")
		begun := time.Now()
		again := r.commit("back", one)
		w.expect(Failed, again, "mc02-r1 hosts 2 clusters")
		w.expect(Applied, again)
		if took := time.Since(begun); took < applyRetry {
			t.Errorf("a failed apply was repeated after %s", took)
		}

		if err := os.Rename(r.bare, r.bare+"-away"); err != nil {
			t.Fatal(err)
		}
		w.expect(Unreachable, "", r.bare)
		if err := os.Rename(r.bare+"-away", r.bare); err != nil {
			t.Fatal(err)
		}
		w.expect(Reachable, again)
		last := r.commit("after the outage", two)
		w.expect(Applied, last)
		both := names{"mc01-r1", "mc02-r1"}
		if want := []names{both[:1], both, both, both[:1], both}; !slices.EqualFunc(w.applied, want, slices.Equal) {
			t.Errorf("applied were %v, want %v", w.applied, want)
		}
	})
}

func TestAWatchContinuesAfterARestart(t *testing.T) {
	r := newWatchedRepository(t)
	home := Home{Dir: filepath.Join(t.TempDir(), "r1")}
	synctest.Test(t, func(t *testing.T) {
		r.t = t
		_, one := r.tree(oneCluster)
		_, two := r.tree(twoClusters)
		begin := r.commit("one cluster", one)
		w, stop := r.watch(t, home, "")
		w.expect(Applied, begin)
		second := r.commit("two clusters", two)
		w.expect(Applied, second)
		if _, _, err := home.OpenWatch(t.Context(), r.bare, "main"); err == nil ||
			!strings.Contains(err.Error(), "another `atoll region watch`") {
			t.Errorf("a second watch of the home: %v", err)
		}
		stop()

		w, stop = r.watch(t, home, "") // the region may have stopped: its commit is applied again
		w.expect(Applied, second)
		stop()

		r.forcePush(begin, one)
		rewritten := r.commit("another history", one)
		w, stop = r.watch(t, home, "")
		w.expect(Refused, rewritten, "the history of main was rewritten", "--accept "+rewritten[:12])
		stop()
		if len(w.applied) != 0 {
			t.Errorf("applied was %v", w.applied)
		}
		w, stop = r.watch(t, home, begin[:12]) // an ancestor of both histories
		w.expect(Applied, rewritten)
		r.forcePush(second, two) // the flag permits one force-push, not the next one
		w.expect(Refused, second, "the history of main was rewritten")
		stop()
	})
	_, _, err := home.OpenWatch(t.Context(), "nowhere", "main")
	if err == nil || !strings.Contains(err.Error(), "--repo") {
		t.Errorf("a path without a repository: %v", err)
	}
}

// stopGit puts a git before that of the system that is killed once when it lists a commit.
func stopGit(t *testing.T, commit string) {
	t.Helper()
	real, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in\n*ls-tree*%s*)\n\tmkdir %s/stopped && kill -9 $$ ;;\nesac\n"+
		"exec %s \"$@\"\n", commit, bin, real)
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// TestAWatchChecksThePinsOfItsRegion has a pinned branch whose commit has a chart and no values of the region, a git
// that is killed, and pins of nothing.
func TestAWatchChecksThePinsOfItsRegion(t *testing.T) {
	r := newWatchedRepository(t)
	home := Home{Dir: filepath.Join(t.TempDir(), "r1")}
	chart := map[string][]byte{"deploy/charts/shared/a/Chart.yaml": []byte("name: a\n")}
	bad := r.commit("a chart alone", chart)
	_, rendered := r.tree(oneCluster)
	maps.Copy(rendered, chart)
	good := r.commit("the chart and the region", rendered)
	stopGit(t, good)
	synctest.Test(t, func(t *testing.T) {
		r.t = t
		r.git("branch", "release", bad)
		r.config["config/production/regions/r0.yaml"] = append(r.config["config/production/regions/r0.yaml"],
			"git: {revision: release}\n"...)
		_, other := r.tree(oneCluster)
		first := r.commit("another region is pinned", other)
		w, stop := r.watch(t, home, "")
		defer stop()
		w.expect(Applied, first)
		_, pinned := r.tree(oneCluster + "git: {revision: release}\n")
		second := r.commit("the region is pinned", pinned)
		w.expect(Refused, second, regionFile+":6: the git.revision release has no deploy/production/r1/")
		r.git("branch", "-f", "release", good)
		w.expect(Failed, second, "reading the git.revision release", "killed")
		w.expect(Applied, second)
		_, nowhere := r.tree(oneCluster + "git: {revision: nowhere}\n")
		third := r.commit("a pin of nothing", nowhere)
		e := <-w.events
		want := regionFile + ":6: the git.revision nowhere is not checked: origin has no such tag or branch"
		if e.Commit != third || e.Result != Applied || !strings.HasPrefix(e.Unchecked, want) {
			t.Errorf("got %+v, want %q", e, want)
		}
	})
}
