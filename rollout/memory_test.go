package rollout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
)

// memory is a Repository in memory. Its commits have their numbers as names.
type memory struct {
	mu      sync.Mutex // guards commits and broken
	commits []commit
	before  func() // called before each Add, for another writer
	broken  int    // so many readings of the head fail
	refusal error  // of each Add

	note       string // of each PinnedTree
	unreadable int    // so many calls of PinnedTree fail

	resolved int // calls of Resolve that found a commit
}

type commit struct {
	files   fstest.MapFS
	parent  string
	message string
	at      time.Time
}

func (m *memory) Head(context.Context) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken > 0 {
		m.broken--
		return "", errors.New("no route to host")
	}
	return fmt.Sprint(len(m.commits) - 1), nil
}

func (m *memory) IsAncestor(_ context.Context, ancestor, of string) (bool, error) {
	for ; of != ""; of = m.at(of).parent {
		if of == ancestor {
			return true, nil
		}
	}
	return false, nil
}

// Resolve knows the branch release, whose commit moves with each call.
func (m *memory) Resolve(_ context.Context, revision string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision != "release" {
		return "", fmt.Errorf("%w %s", gitrepo.ErrNoRevision, revision)
	}
	m.resolved++
	return fmt.Sprintf("%040d", m.resolved), nil
}

func (m *memory) FirstChange(_ context.Context, commits string, paths ...string) string {
	from, to, _ := strings.Cut(commits, "..")
	before, after := m.at(from).files, m.at(to).files
	names := slices.Sorted(maps.Keys(before))
	for name := range after {
		if before[name] == nil {
			names = append(names, name)
		}
	}
	for _, name := range names {
		isBelow := func(dir string) bool { return strings.HasPrefix(name, dir+"/") }
		if !slices.ContainsFunc(paths, isBelow) {
			continue
		}
		var old, now []byte
		if f := before[name]; f != nil {
			old = f.Data
		}
		if f := after[name]; f != nil {
			now = f.Data
		}
		if line := firstDifference(string(old), string(now)); line > 0 {
			return fmt.Sprintf("%s:%d", name, line)
		}
	}
	return ""
}

// firstDifference returns the number of the first line that differs; 0: none does.
func firstDifference(a, b string) int {
	if a == b {
		return 0
	}
	left, right := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(left), len(right)) {
		if left[i] != right[i] {
			return i + 1
		}
	}
	return min(len(left), len(right)) + 1
}

func (m *memory) at(name string) commit {
	m.mu.Lock()
	defer m.mu.Unlock()
	var i int
	fmt.Sscan(name, &i)
	return m.commits[i]
}

func (m *memory) ReadFile(_ context.Context, of, name string) ([]byte, error) {
	return fs.ReadFile(m.at(of).files, name)
}

func (m *memory) Tree(_ context.Context, of, dir string, below ...string) (fs.FS, error) {
	files := maps.Clone(m.at(of).files)
	maps.DeleteFunc(files, func(name string, _ *fstest.MapFile) bool {
		isBelow := func(at string) bool { return strings.HasPrefix(name+"/", path.Join(dir, at)+"/") }
		return len(below) > 0 && !slices.ContainsFunc(below, isBelow)
	})
	return fs.Sub(files, dir)
}

func (m *memory) PinnedTree(ctx context.Context, revision string, paths []string) (fs.FS, string, error) {
	m.mu.Lock()
	commits, note, broken := len(m.commits), m.note, m.unreadable > 0
	if broken {
		m.unreadable--
	}
	m.mu.Unlock()
	if broken {
		return nil, "", errors.New("git was killed")
	}
	var i int
	if _, err := fmt.Sscan(revision, &i); err != nil || i >= commits {
		return nil, "not checked: no such commit", nil
	}
	files, err := m.Tree(ctx, fmt.Sprint(i), ".", paths...)
	return files, note, err
}

func (m *memory) Add(_ context.Context, parent string, files map[string][]byte, message string) (string, error) {
	if do := m.before; do != nil {
		m.before = nil
		do()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusal != nil {
		return "", m.refusal
	}
	if head := fmt.Sprint(len(m.commits) - 1); parent != head {
		return "", gitrepo.ErrStale
	}
	next := commit{files: maps.Clone(m.commits[len(m.commits)-1].files), parent: parent, message: message, at: time.Now()}
	for name, data := range files {
		if next.files[name] = (&fstest.MapFile{Data: data}); data == nil {
			delete(next.files, name)
		}
	}
	m.commits = append(m.commits, next)
	return fmt.Sprint(len(m.commits) - 1), nil
}

// write adds a commit of an operator.
func (m *memory) write(name, text string) { m.edit(map[string][]byte{name: []byte(text)}) }

func (m *memory) remove(name string) { m.edit(map[string][]byte{name: nil}) }

func (m *memory) edit(files map[string][]byte) {
	head, err := m.Head(context.Background())
	if err == nil {
		_, err = m.Add(context.Background(), head, files, "edit")
	}
	if err != nil {
		panic(err)
	}
}

// healthy is a HealthReader with the verdicts of some targets; the others pass.
type healthy map[Target]Verdict

func (h healthy) Read(_ context.Context, _ Rollout, _ Fleet, targets []Target) Observation {
	seen := Observation{}
	for _, t := range targets {
		seen[t] = Health{Verdict: Passing}
		if verdict, has := h[t]; has {
			seen[t] = Health{verdict, "gate api: 503"}
		}
	}
	return seen
}

const rolloutFile = "rollouts/next.yaml"

// newMemory returns a repository with a configuration of three regions, and a rollout.
func newMemory(rollout string) *memory {
	files := fstest.MapFS{}
	for name, text := range map[string]string{
		"config/defaults.yaml":                 "git: {repository: https://example.com/p.git}\nversions: {atoll: '1'}\n",
		"config/prod/environment.yaml":         "sectors: [canary, main]\n",
		"config/prod/regions/r1.yaml":          "sector: canary # first\nmanagementClusters: {mc01: {}}\n",
		"config/prod/regions/r2.yaml":          "sector: main\nmanagementClusters: {mc01: {}}\n",
		"config/prod/regions/r3.yaml":          "sector: main\n",
		"README.md":                            "not of the rollout\n",
		"deploy/prod/r1/management-clusters/x": "a file of an operator\n",
		rolloutFile: "environment: prod\nchange: {version: '2'}\n" +
			"gates: [{name: api, url: 'https://$region/ready'}]\n" + rollout,
	} {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return &memory{commits: []commit{{files: files}}}
}

func (m *memory) driver(h HealthReader) *Driver {
	return &Driver{Repository: m, Health: h, File: rolloutFile, Config: "config", Rendered: "deploy"}
}

// versions returns the version of each region in the newest commit, and checks that the rendered files agree.
func (m *memory) versions(t *testing.T) string {
	t.Helper()
	head, err := m.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files := m.at(head).files
	config, err := fs.Sub(files, "config")
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := gitops.Load(config, "config")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range fleet.Regions() {
		all = append(all, string(r.Name)+"="+r.Settings.Versions.Atoll)
		rendered, has := files["deploy/"+r.Dir()+"/region.yaml"]
		if has && !strings.Contains(string(rendered.Data), "atoll: \""+r.Settings.Versions.Atoll+"\"") {
			t.Errorf("rendered is\n%s", rendered.Data)
		}
	}
	return strings.Join(all, " ")
}

func (m *memory) subjects() (all []string) {
	for _, c := range m.commits[1:] {
		subject, _, _ := strings.Cut(c.message, "\n")
		all = append(all, subject)
	}
	return all
}
