package rollout

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/synctest"

	"atoll.dev/gitops"
)

// render commits what the configuration renders, as an operator does.
func (m *memory) render(t *testing.T) {
	t.Helper()
	config, err := fs.Sub(m.commits[len(m.commits)-1].files, "config")
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := gitops.Load(config, "config")
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := gitops.Render(fleet)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for name, data := range rendered {
		files[path.Join("deploy", name)] = data
	}
	m.edit(files)
}

// TestAStepDoesNotCarryEditsThatNobodyHasRendered adds a cluster to a region without rendering it.
func TestAStepDoesNotCarryEditsThatNobodyHasRendered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		m.render(t)
		m.write("config/prod/regions/r2.yaml", "sector: main\nmanagementClusters: {mc01: {}, mc02: {}}\n")
		_, err := m.driver(healthy{}).Run(t.Context())
		const want = "deploy/prod/r2/management-clusters/mc02/apps/applicationset.yaml:1: the file is missing; move such " +
			"a file, run `atoll config render`"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v", err)
		}
		if got := m.versions(t); got != "r1=2 r2=1 r3=1" {
			t.Error(got)
		}
		m.render(t)
		if record, err := m.driver(healthy{}).Run(t.Context()); err != nil || record.State.Phase != Done {
			t.Fatal(record.State, err)
		}
		if got := m.versions(t); got != "r1=2 r2=2 r3=2" {
			t.Error(got)
		}
	})
}

// TestAnAutomaticRevertDoesNotWaitForRenderedFiles fails a gate after somebody has edited a region without rendering.
func TestAnAutomaticRevertDoesNotWaitForRenderedFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("onFailure: revert\n")
		m.render(t)
		edit := func() {
			m.write("config/prod/regions/r1.yaml", "sector: canary\nversions: {atoll: '2'}\nmanagementClusters: {}\n")
		}
		d := m.driver(healthy{"r1": Failing})
		d.Show = func(e Event) {
			if strings.Contains(e.What, "change r1") {
				edit()
			}
		}
		record, err := d.Run(t.Context())
		if got := m.versions(t); !errors.Is(err, ErrUndone) || record.State.Phase != Reverted || got != "r1=1 r2=1 r3=1" {
			t.Error(record.State, err, got)
		}
	})
}

func TestARegionThatNobodyHasRenderedIsRenderedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		if _, err := m.driver(healthy{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		files := m.commits[len(m.commits)-1].files
		for _, name := range []string{"region.yaml", "regional-cluster/root.yaml", "management-clusters/mc01/values.yaml"} {
			if files["deploy/prod/r1/"+name] == nil {
				t.Errorf("%s is missing", name)
			}
		}
	})
}
