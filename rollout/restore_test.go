package rollout

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// revert runs `rollout revert`, or with ForceRevert `rollout revert --force`.
func (m *memory) revert(t *testing.T, c Command) (Recorded, error) {
	t.Helper()
	return m.driver(nil).Command(t.Context(), func(_ Plan, s State) (State, []Effect, error) {
		return s.Command(c, "ann", time.Now())
	})
}

// TestARevertRefusesHandEdits edits the repository by hand after a rollout. A revert names each edit with its line and
// changes nothing; with --force it overwrites them.
func TestARevertRefusesHandEdits(t *testing.T) {
	const r1, rendered = "config/prod/regions/r1.yaml", "deploy/prod/r1/regional-cluster/values.yaml"
	for name, c := range map[string]struct {
		do       func(m *memory)
		want     string   // in the error; "": the revert works without --force
		versions string   // after the revert with --force
		kept     []string // by it
	}{
		"another version": {do: func(m *memory) {
			m.write(r1, "sector: canary\nversions:\n  atoll: '3'\nmanagementClusters: {mc01: {}}\n")
		}, want: r1 + `:3: versions.atoll of r1 is "3"; the rollout had set "2", and before that it was (none)`},
		"a version that is missing": {do: func(m *memory) {
			m.write(r1, "sector: canary\nversions: {images: {clm: x}}\nmanagementClusters: {mc01: {}}\n")
		}},
		"another version without rendering, in the main sector": {do: func(m *memory) {
			m.write("config/prod/regions/r2.yaml", "sector: main\nversions: {atoll: '2.1'}\n")
		}, want: `config/prod/regions/r2.yaml:2: versions.atoll of r2 is "2.1"`},
		"the earlier values": {do: func(m *memory) {
			m.write(r1, "sector: canary # first\nmanagementClusters: {mc01: {}}\n")
			m.write("config/prod/regions/r2.yaml", "sector: main\nmanagementClusters: {mc01: {}}\n")
		}},
		"a setting beside it": {do: func(m *memory) {
			m.write(r1, "sector: canary\nversions: {atoll: '2', images: {clm: x}}\nmanagementClusters: {mc01: {}}\n")
		}},
		"a region that was removed": {do: func(m *memory) { m.remove(r1) }, want: r1 + ":1: r1 was removed",
			versions: "r2=1 r3=1", kept: []string{"r1: its file " + r1 + " was removed"}},
		"a rendered file": {do: func(m *memory) {
			text := string(m.commits[len(m.commits)-1].files[rendered].Data)
			m.write(rendered, strings.Replace(text, "{}\n", "replicas: 9\n", 1))
		}, want: rendered + `:2: the file has "replicas: 9", the configuration renders "{}"`},
		"a rendered file without its first line": {do: func(m *memory) { m.write(rendered, "replicas: 9\n") },
			want: rendered + ":1: this file was not rendered and is in the way"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory("")
			m.render(t)
			if _, err := m.driver(healthy{}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.do(m)
			if !strings.Contains(name, "rendered file") && !strings.Contains(name, "without rendering") {
				m.render(t)
			}
			commits := len(m.commits)
			record, err := m.revert(t, Revert)
			isRefused := err != nil && strings.Contains(err.Error(), c.want) && len(m.commits) == commits
			if c.want != "" && !isRefused {
				t.Errorf("%s: got %v and %d commits, want %q", name, err, len(m.commits)-commits, c.want)
			}
			if c.want != "" && !errors.Is(err, ErrHandEdits) {
				t.Errorf("%s: the error %v does not name the remedy", name, err)
			}
			if c.want != "" {
				record, err = m.revert(t, ForceRevert)
			}
			if c.versions == "" {
				c.versions = "r1=1 r2=1 r3=1"
			}
			if got := m.versions(t); err != nil || record.State.Phase != Reverted || got != c.versions {
				t.Errorf("%s: after the revert: %s, %s, %v", name, got, record.State.Phase, err)
			}
			if !slices.Equal(record.Kept, c.kept) {
				t.Errorf("%s: kept %q, want %q", name, record.Kept, c.kept)
			}
			files := m.commits[len(m.commits)-1].files
			if data := string(files[rendered].Data); strings.Contains(data, "replicas") {
				t.Errorf("%s: %s is\n%s", name, rendered, data)
			}
		})
	}
}

// TestARevertDeclaresNoClusterThatWasRemoved removes a canary cluster from its region.
func TestARevertDeclaresNoClusterThatWasRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const r2 = "config/prod/regions/r2.yaml"
		m := newMemory("canaries: [r2/mc01]\n")
		m.write(r2, "sector: main\nmanagementClusters: {mc01: {versions: {atoll: '0'}}}\n")
		m.render(t)
		if _, err := m.driver(healthy{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.write(r2, "sector: main\nversions: {atoll: '2'}\nmanagementClusters: {}\n")
		m.render(t)
		if _, err := m.revert(t, Revert); err == nil || !strings.Contains(err.Error(), r2+":1: r2/mc01 was removed") {
			t.Errorf("got %v", err)
		}
		record, err := m.revert(t, ForceRevert)
		want := []string{"r2/mc01: " + r2 + " declares it no more"}
		if text := string(m.commits[len(m.commits)-1].files[r2].Data); err != nil || strings.Contains(text, "mc01") ||
			strings.Contains(text, "atoll") || !slices.Equal(record.Kept, want) {
			t.Errorf("%v, kept %q; r2 is\n%s", err, record.Kept, text)
		}
	})
}
