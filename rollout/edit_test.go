package rollout

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/gitops"
)

// example returns the example's configuration, and a rollout for it.
func example(t *testing.T, text string) (Tree, Rollout) {
	t.Helper()
	r, err := Parse("r.yaml", []byte(text+"\nenvironment: production\n"+
		"gates: [{name: api, url: 'https://api.$region.example.com/ready'}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	return Tree{Files: os.DirFS("../examples/config"), Dir: "config"}, r
}

func TestAPreviewShowsWhatChangesAndWhatRestarts(t *testing.T) {
	tree, r := example(t, `
change: {version: "1.5.0", set: {values.global.logLevel: warn, terraform.global.enable_bastion: true}}
canaries: [eu-central-1/mc02]
approval: [main]`)
	p, err := tree.Preview(r, time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if p.Regions != 4 || p.Clusters != 6 || len(p.Steps) != 4 || p.Approvals != 1 || p.Longest <= p.Expected {
		t.Errorf("%d regions, %d clusters, %d steps, %d approvals, %v to %v", p.Regions, p.Clusters, len(p.Steps),
			p.Approvals, p.Expected, p.Longest)
	}
	var names [][]string
	for _, step := range p.Steps {
		if targets := Duration(len(step.Targets)); step.Expected != targets*Duration(10*time.Minute) ||
			step.Longest != targets*Duration(time.Hour) || !step.Latest.After(step.End) {
			t.Errorf("%v takes %v, at the longest %v, until %v or %v", step.Targets, step.Expected, step.Longest, step.End,
				step.Latest)
		}
		var of []string
		for _, c := range step.Changes {
			of = append(of, strings.Trim(string(c.Region)+"/"+string(c.Cluster), "/"))
		}
		names = append(names, of)
	}
	want := [][]string{{"us-east-2", "us-east-2/mc01"}, {"eu-central-1/mc02"}, {"eu-central-1", "eu-central-1/mc01"},
		{"ap-southeast-2", "ap-southeast-2/mc01", "us-east-1", "us-east-1/mc01", "us-east-1/mc02"}}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("changes of the steps (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"all services", "the workloads whose chart reads a changed value"},
		p.Steps[1].Restarts); diff != "" {
		t.Errorf("restarts (-want +got):\n%s", diff)
	}
	// The canary sector has version 1.5.0 already.
	if keys := p.Steps[0].Changes[0].Values; len(keys) != 2 || keys[0].Key != "terraform.global.enable_bastion" {
		t.Errorf("us-east-2 changes %v", keys)
	}
}

func TestAChangeThatTheConfigurationRefusesHasNoPlan(t *testing.T) {
	for text, want := range map[string]string{
		"change: {set: {version.atoll: x}}": "the change is not valid: config/production/regions/" +
			"ap-southeast-2.yaml:7: unknown key version; the nearest known key is versions",
		"change: {set: {values: 3}}": "values is a number; it must be a mapping",
	} {
		tree, r := example(t, text)
		if _, err := tree.Preview(r, time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// with returns the tree with these files changed or added, so that further edits follow.
func (t Tree) with(test *testing.T, files gitops.Files) Tree {
	all := fstest.MapFS{}
	err := fs.WalkDir(t.Files, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := fs.ReadFile(t.Files, path)
		all[path] = &fstest.MapFile{Data: data}
		return err
	})
	if err != nil {
		test.Fatal(err)
	}
	for path, data := range files {
		all[path] = &fstest.MapFile{Data: data}
	}
	return Tree{Files: all, Dir: t.Dir}
}

func (t Tree) load(test *testing.T) gitops.Fleet {
	test.Helper()
	fleet, err := gitops.Load(t.Files, t.Dir)
	if err != nil {
		test.Fatal(err)
	}
	return fleet
}

func TestRestoreGivesEachTargetItsEarlierValues(t *testing.T) {
	tree, r := example(t, `change: {version: "1.6.0", revision: abc, set: {values.global.new.deep: 1}}`)
	targets := []Target{"us-east-1", "us-east-1/mc02", "us-east-2"}
	_, files, undo, err := tree.Change(r, targets)
	if err != nil {
		t.Fatal(err)
	}
	changed := tree.with(t, files)
	if got := gitops.Compare(tree.load(t), changed.load(t)); len(got) != 5 { // two regions and their three clusters
		t.Errorf("%d regions and clusters changed, want 5", len(got))
	}
	_, files, kept, err := changed.Restore(r, targets, undo, KeepHandEdits)
	if err != nil || len(kept) > 0 {
		t.Fatal(kept, err)
	}
	if got := gitops.Compare(tree.load(t), changed.with(t, files).load(t)); len(got) != 0 {
		t.Errorf("after the revert there remain %v", got)
	}
}

func TestRestoreKeepsWhatSomebodyElseHasSetSince(t *testing.T) {
	tree, r := example(t, `change: {version: "1.6.0", revision: abc}`)
	targets := []Target{"us-east-1"}
	_, files, undo, err := tree.Change(r, targets)
	if err != nil {
		t.Fatal(err)
	}
	const name = "production/regions/us-east-1.yaml"
	files[name] = []byte(strings.Replace(string(files[name]), "1.6.0", "1.6.1", 1))
	changed := tree.with(t, files)
	_, files, kept, err := changed.Restore(r, targets, undo, KeepHandEdits)
	if err != nil || !slices.Equal(kept, []string{"us-east-1: versions.atoll"}) {
		t.Fatal(kept, err)
	}
	text := string(files[name])
	if !strings.Contains(text, "1.6.1") || strings.Contains(text, "abc") {
		t.Errorf("after the revert:\n%s", text)
	}
}

// TestARevertThroughTheRecordIsExact reverts with an undo that the record of a commit has, while others edit the file.
func TestARevertThroughTheRecordIsExact(t *testing.T) {
	const text = "values: {global: {limit: 17179869184, release: 2026-11-20, rate: 1e-05}}\nsector: main\n"
	r, err := Parse("r.yaml", []byte("environment: prod\nchange: {version: '2', set: {values.global.limit: 34359738368, "+
		"values.global.release: 2026-11-21, values.global.rate: 2e-05}}\ngates: [{name: api, url: 'https://r'}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	tree := Tree{Dir: "config", Files: fstest.MapFS{"prod/regions/r1.yaml": {Data: []byte(text)}}}
	_, files, undo, err := tree.Change(r, []Target{"r1"})
	if err != nil || !strings.Contains(string(files["prod/regions/r1.yaml"]), `release: "2026-11-21"`) {
		t.Fatalf("%s, %v", files["prod/regions/r1.yaml"], err)
	}
	raw, err := (Recorded{Undo: undo, Waves: []Wave{{}}, State: newState(time.Now())}).encode()
	if err != nil {
		t.Fatal(err)
	}
	record, err := decodeRecord("r.record.json", raw)
	if err != nil {
		t.Fatal(err)
	}
	changed := string(files["prod/regions/r1.yaml"])
	for since, want := range map[string]string{
		changed: text,
		strings.Replace(changed, "versions:\n", "versions:\n  images: {clm: x}\n", 1): text +
			"versions:\n  images: {clm: x}\n",
	} {
		tree.Files = fstest.MapFS{"prod/regions/r1.yaml": {Data: []byte(since)}}
		_, files, kept, err := tree.Restore(r, []Target{"r1"}, record.Undo, RefuseHandEdits)
		if got := string(files["prod/regions/r1.yaml"]); err != nil || len(kept) > 0 || got != want {
			t.Errorf("reverted\n%s\nit is\n%s\nwant\n%s\nkept %v, %v", since, got, want, kept, err)
		}
	}
}
