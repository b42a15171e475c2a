package rollout

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		if err == nil || !strings.Contains(err.Error(), "is not what the configuration renders") || !strings.Contains(err.
			Error(), "deploy/prod/r2/") {
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

// TestARevertDoesNotWaitForRenderedFiles reverts a region that somebody has edited without rendering it.
func TestARevertDoesNotWaitForRenderedFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		m.render(t)
		if _, err := m.driver(healthy{"r1": Failing}).Run(t.Context()); !errors.Is(err, ErrHalted) {
			t.Fatal(err)
		}
		m.write("config/prod/regions/r1.yaml", "sector: canary\nversions: {atoll: '2'}\nmanagementClusters: {}\n")
		_, err := m.driver(nil).Command(t.Context(), func(_ Plan, s State) (State, []Effect, error) {
			return s.Command(Revert, "ann", time.Now())
		})
		if got := m.versions(t); err != nil || got != "r1=1 r2=1 r3=1" {
			t.Error(got, err)
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
