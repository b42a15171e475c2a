package operator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/cli/terminal"
	"atoll.dev/local"
)

// goodConfig is a configuration of two regions, with a chart that has a schema, and a rollout.
var goodConfig = map[string]string{
	"config/defaults.yaml":         "git: {repository: https://example.com/p.git}\nvalues:\n  global: {level: info}\n",
	"config/prod/environment.yaml": "sectors: [canary, main]\n",
	"config/prod/regions/r1.yaml": "sector: canary\naws: {accountId: \"100000000001\"}\nmanagementClusters:\n" +
		"  mc01:\n    aws: {accountId: \"200000000001\"}\n",
	"config/prod/regions/r2.yaml": "sector: main\naws: {accountId: \"100000000002\"}\nmanagementClusters:\n" +
		"  mc01:\n    aws: {accountId: \"200000000002\"}\n",
	"deploy/charts/shared/log/values.schema.json": `{"properties": {"level": {"enum": ["info", "debug"]}}}`,
	"rollouts/next.yaml": "environment: prod\nchange: {version: '2'}\n" +
		"gates: [{name: api, url: 'https://127.0.0.1:1/ready'}]\n",
}

// badInput are the mistakes that a commit can have, by the files that it changes ("": it removes them).
var badInput = []struct {
	name  string
	files map[string]string
	want  string // in each error: a file and line, and what is wrong
}{
	{"a cycle", map[string]string{"config/defaults.yaml": "git: {repository: r}\nvalues:\n  global: &all\n    a: 1\n" +
		"    b: *all\n"}, "config/defaults.yaml:5: the alias *all contains itself"},
	{"a missing sector", map[string]string{"config/prod/regions/r2.yaml": "sector: early\n"},
		"config/prod/regions/r2.yaml:1: config/prod/environment.yaml lists no sector early; it lists canary, main"},
	{"two regions with one name, by two files", map[string]string{"config/prod/regions/r1.yml": "sector: main\n"},
		"config/prod/regions/r1.yml:1: nothing reads this; name the file NAME.yaml"},
	{"two regions with one name, by two shards", map[string]string{"config/defaults.yaml": "",
		"config/prod/environment.yaml": "", "config/prod/regions/r1.yaml": "", "config/prod/regions/r2.yaml": "",
		"config/config.yaml": "git: {repository: r}\nshards:\n  - {region: r1, environment: prod}\n" +
			"  - region: r1\n    environment: prod\n"},
		"config/config.yaml:4: the region prod/r1 is declared twice; first at config/config.yaml:3"},
	{"a management cluster in the account of another region", map[string]string{"config/prod/regions/r2.yaml": "sector: " +
		"main\nmanagementClusters:\n  mc01:\n    aws: {accountId: \"100000000001\"}\n"},
		"config/prod/regions/r2.yaml:4: the account 100000000001 is of the region prod/r1, at config/prod/regions/r1.yaml:2"},
	{"a type change between levels", map[string]string{"config/prod/sectors/main.yaml": "values:\n  global: {level: 3}\n"},
		"config/prod/sectors/main.yaml:2: values.global.level is a number here and a text at config/defaults.yaml:3"},
	{"a value that the schema of a chart refuses", map[string]string{"config/prod/sectors/main.yaml": "values:\n" +
		"  global:\n    level: loud\n"},
		"config/prod/sectors/main.yaml:3: the chart deploy/charts/shared/log refuses the value level: "},
	{"a revision whose charts refuse its values", map[string]string{"config/prod/sectors/canary.yaml": "git: {revision: " +
		"strict}\n"}, "config/prod/sectors/canary.yaml:1: in the git.revision strict the chart deploy/charts/shared/log " +
		"refuses the value level: "},
	{"a revision in which the region is not rendered", map[string]string{"config/prod/regions/r3.yaml": "sector: main\n" +
		"git: {revision: good}\n"}, "config/prod/regions/r3.yaml:2: the git.revision good has no " +
		"deploy/prod/r3/regional-cluster/values.yaml"},
}

// TestBadInputIsRefusedWithFileAndLine gives each mistake to `config render`, `region watch` and `rollout run`. Each of
// them names file and line, writes no file and no commit, and starts no region.
func TestBadInputIsRefusedWithFileAndLine(t *testing.T) {
	w := newWatchedWorld(t)
	for _, c := range badInput {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			defer w.git(w.clone, "reset", "-q", "--hard", w.good)
			for name, text := range c.files {
				if w.write(name, text); text == "" {
					w.git(w.clone, "rm", "-q", "-f", name)
				}
			}
			before := digests(t, w.clone)
			out, err := execute(t.Context(), Config, terminal.Session{}, "render", "--config", "config", "--out", "deploy")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("config render: %s%v, want %q", out, err, c.want)
			}
			if after := digests(t, w.clone); !maps.Equal(before, after) {
				t.Errorf("config render wrote files: %v, before %v", after, before)
			}
			w.commit(c.name)
			w.push("--force")
			bad := w.git(w.clone, "rev-parse", "HEAD")
			if _, err := w.rollout("run"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("rollout run: %v, want %q", err, c.want)
			}
			region := "r1"
			if c.files["config/prod/regions/r3.yaml"] != "" { // a watch checks the pins of its own region only
				region = "r3"
			}
			if line := w.refusal(region); !strings.Contains(line, bad[:12]) || !strings.Contains(line, c.want) {
				t.Errorf("region watch: %s, want %q", line, c.want)
			}
			w.checkNothingDone(bad)
		})
	}
}

// TestAnEditedDeclarationIsNotApplied edits a rendered region.yaml by hand.
func TestAnEditedDeclarationIsNotApplied(t *testing.T) {
	w := newWatchedWorld(t)
	const name, cluster = "deploy/prod/r1/region.yaml", "  - name: mc01-r1\n"
	rendered, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{cluster, cluster + "    capacity: {planes: 3}\n", ":5: unknown key managementClusters.capacity"},
		{cluster, cluster + cluster, ":5: the management cluster mc01-r1 is there twice"},
		{"region: r1\n", "region: [r1]\n", ": region is a list; it must be a text"},
		{"region: r1\n", "", ":2: \"\" does not name a valid region"},
		{"region: r1\n", "region: r1\n\tx\n", "this is not YAML"},
	} {
		w.write(name, strings.Replace(string(rendered), c.old, c.new, 1))
		session := terminal.Session{HomeDir: w.home.Dir, HomeIsGiven: true}
		out, err := execute(t.Context(), Region, session, "apply", "r1")
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %s%v, want %s%s", c.new, out, err, name, c.want)
		}
	}
	w.checkNothingDone(w.good)
}

// TestABranchThatIsNotTheCheckoutIsRefused has changes that are not committed, commits that are not pushed, and a
// history that was rewritten.
func TestABranchThatIsNotTheCheckoutIsRefused(t *testing.T) {
	w := newWatchedWorld(t)
	w.write("config/prod/regions/r1.yaml", goodConfig["config/prod/regions/r1.yaml"]+"# mine\n")
	if _, err := w.rollout("run"); err == nil || !strings.Contains(err.Error(),
		"config/prod/regions/r1.yaml:6: the checkout differs from the branch: this is not committed") {
		t.Errorf("a dirty repository: %v", err)
	}
	w.checkNothingDone(w.good)
	w.commit("mine")
	if _, err := w.rollout("run"); err == nil || !strings.Contains(err.Error(), "config/prod/regions/r1.yaml:6: ") ||
		!strings.Contains(err.Error(), "is not in main of origin; push it, or rebase it") {
		t.Errorf("a diverged repository: %v", err)
	}
	w.checkNothingDone(w.good)
	w.git(w.clone, "commit", "-q", "--amend", "--no-edit", "--reset-author", "--date=2000-01-01T00:00:00Z")
	w.git(w.clone, "checkout", "-q", "--orphan", "other")
	w.git(w.clone, "commit", "-q", "-m", "another history")
	w.git(w.clone, "push", "-q", "--force", "origin", "other:main")
	rewritten := w.git(w.clone, "rev-parse", "HEAD")
	want := fmt.Sprintf("the history of main was rewritten: %.12s is no descendant of %.12s, which is applied", rewritten,
		w.good)
	if line := w.refusal("r1"); !strings.Contains(line, want) || !strings.Contains(line, "--accept "+rewritten[:12]) {
		t.Errorf("a force-push: %s, want %q", line, want)
	}
	w.checkNothingDone(rewritten)
}

// watchedWorld is a repository with goodConfig, and the home of region r1, which has applied it: but no region runs.
type watchedWorld struct {
	*repository
	home local.Home
	good string // the commit with goodConfig
}

func newWatchedWorld(t *testing.T) *watchedWorld {
	w := &watchedWorld{repository: newRepository(t)}
	for name, text := range goodConfig {
		w.write(name, text)
	}
	t.Chdir(w.clone) // the charts are in the present directory
	out, err := execute(t.Context(), Config, terminal.Session{}, "render")
	if err != nil {
		t.Fatal(out, err)
	}
	const schema = "deploy/charts/shared/log/values.schema.json"
	w.write(schema, `{"properties": {"level": {"enum": ["debug"]}}}`)
	w.commit("strict")
	w.git(w.clone, "tag", "strict")
	w.write(schema, goodConfig[schema])
	w.commit("good")
	w.git(w.clone, "tag", "good")
	w.push()
	w.push("--tags")
	w.good = w.git(w.clone, "rev-parse", "HEAD")
	if w.home, err = local.OpenHome(filepath.Join(t.TempDir(), "r1")); err != nil {
		t.Fatal(err)
	}
	watch, unlock, err := w.home.OpenWatch(t.Context(), w.remote, "main")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := watch.Branch.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := watch.Branch.Mark(t.Context(), "applied", w.good); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *watchedWorld) rollout(verb string) (string, error) {
	return execute(w.t.Context(), Rollout, terminal.Session{}, verb, "rollouts/next.yaml", "--repo", w.clone)
}

// refusal runs a watch of a region until it has refused a commit, and returns what it printed of that.
func (w *watchedWorld) refusal(region string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Minute)
	defer cancel()
	out := &outputUntil{text: `"refused"`, cancel: cancel}
	session := &terminal.Session{HomeDir: w.home.Dir, HomeIsGiven: true, Out: out, Err: out}
	cmd := Region(session)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"watch", region, "--repo", w.remote, "-o", "json"})
	if err := cmd.ExecuteContext(ctx); err != nil {
		w.t.Error(err)
	}
	return out.String()
}

// checkNothingDone checks that the branch is still at a commit, and that the home has no region and no other applied
// commit.
func (w *watchedWorld) checkNothingDone(head string) {
	w.t.Helper()
	if got := w.git(w.remote, "rev-parse", "main"); got != head {
		w.t.Errorf("the branch is at %s, want %s", got, head)
	}
	if _, err := w.home.State(); err == nil {
		w.t.Error("a region was started")
	}
	clone := w.home.Path("watch.git")
	if got := w.git(clone, "for-each-ref", "--format=%(objectname)", "refs/atoll/marks/applied"); got != w.good {
		w.t.Errorf("applied is %s, want %s", got, w.good)
	}
}

// outputUntil calls cancel when the output has a text.
type outputUntil struct {
	bytes.Buffer
	text   string
	cancel func()
}

func (o *outputUntil) Write(data []byte) (int, error) {
	n, err := o.Buffer.Write(data)
	if strings.Contains(o.String(), o.text) {
		o.cancel()
	}
	return n, err
}

// digests returns the digests of all files below a directory, without those of Git.
func digests(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	all := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == ".git" {
			return fs.SkipDir
		}
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = sha256.Sum256(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
