package hosted

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"atoll.dev/api/fleet"
	"atoll.dev/api/platform"
	"atoll.dev/test/localtest"
)

// A cluster is removed by force while its control plane runs: its place stays
// reserved, the control plane is listed with its size, and an
// operator deletes it. Then nothing is left, and the audit record names the
// operator.
func TestI9OrphansOfAForcedDeletionAreFoundAndDeleted(t *testing.T) {
	r := localtest.Restarted(t)
	w := &world{t: t, r: r, api: r.API()}
	placements := func() int {
		t.Helper()
		m, err := w.api.ManagementCluster(t.Context(), mc)
		if err != nil {
			t.Fatal(err)
		}
		return m.Placements
	}
	w.eventually("no cluster of another test is left", func() error {
		if planes, places := len(r.Status().Planes), placements(); planes > 0 || places > 0 {
			return fmt.Errorf("%d control planes, %d places", planes, places)
		}
		return nil
	})
	made, err := w.api.CreateCluster(t.Context(), platform.ClusterRequest{Name: "forced"})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("it is ready", func() error { return w.ready(made.ID) })

	// The adapters are stopped, so that no deletion begins.
	adapters := r.Process("adapter").PID
	if err := syscall.Kill(adapters, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := func() { _ = syscall.Kill(adapters, syscall.SIGCONT) }
	defer resume()
	r.Atoll("clm", "delete", "clusters", made.ID)
	r.Atoll("clm", "force-delete", "clusters", made.ID, "--reason", "a test")
	resume()

	orphans := func() (list []fleet.Orphan) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.Atoll("mc", "orphans", mc, "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	var found fleet.Orphan
	w.eventually("what runs is found", func() error {
		for _, o := range orphans() {
			if o.ClusterID == made.ID && o.Name == "work-"+made.ID && o.RemovedBy != "" {
				found = o
				return nil
			}
		}
		return fmt.Errorf("found is %+v", orphans())
	})
	if found.ManagementCluster != mc || found.Size["planes"] != 1 || !strings.Contains(strings.Join(found.What, " "),
		"HostedCluster clusters-"+made.ID+"/") {
		t.Errorf("what runs is shown as %+v", found)
	}
	if n := placements(); n != 1 {
		t.Errorf("while the control plane runs, %d places are reserved", n)
	}
	if n := len(r.Status().Planes); n != 1 {
		t.Errorf("%d control planes run", n)
	}
	if out, err := r.Try("mc", "orphans", "end", mc, found.ID); err == nil {
		t.Errorf("it is ended without a reason: %s", out)
	}

	r.Atoll("mc", "orphans", "end", mc, made.ID, "--reason", "nobody needs it")
	w.eventually("nothing is left", func() error { return w.checkOnly(nil) })
	w.eventually("its room is free", func() error {
		if n := placements(); n != 0 {
			return fmt.Errorf("%d places are reserved", n)
		}
		return nil
	})
	w.eventually("no orphan is listed", func() error {
		if list := orphans(); len(list) > 0 {
			return fmt.Errorf("listed are %+v", list)
		}
		return nil
	})
	w.eventually("no control plane runs", func() error {
		if n := len(r.Status().Planes); n > 0 {
			return errors.New("one runs")
		}
		return nil
	})
	if h := r.Atoll("clm", "history", "clusters", made.ID, "-o", "json"); !strings.Contains(h, "end-orphan") ||
		!strings.Contains(h, "nobody needs it") || !strings.Contains(h, "cli:") {
		t.Errorf("the record does not name who deleted it: %s", h)
	}
}
