package hosted

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/cluster"
	"atoll.dev/internal/quick"
	"atoll.dev/test/localtest"
)

// A cluster of a customer who has chosen nothing gets a warm plane: what the region orders fits what hosting keeps
// ready. The region shows the plane as the cluster's. Of planes that wait it shows the number, to operators.
func TestAClusterOfTheRegionGetsAWarmPlane(t *testing.T) {
	quick.Slow(t, "fills the pool of a region with warm planes")
	r := localtest.New(t, "--warm-planes", "1")
	w := &world{t: t, r: r, api: r.API()}
	hosting := filepath.Join(r.Home, "management", mc, "hosting")
	w.eventually("a warm plane", func() error {
		records, _ := filepath.Glob(filepath.Join(hosting, "state", "_warm", "*", "hosting.json"))
		for _, file := range records {
			if record, err := os.ReadFile(file); err == nil && strings.Contains(string(record), `"born":true`) {
				return nil
			}
		}
		return errors.New("none is ready")
	})
	if shown := r.Status().Planes; len(shown) > 0 {
		t.Errorf("planes that wait are shown: %+v", shown)
	}
	w.eventually("atoll mc shows one warm plane", func() error {
		got, err := w.api.ManagementCluster(t.Context(), mc)
		if err != nil {
			return err
		}
		if got.Hosting == nil || got.Hosting.WarmPlanes != 1 || !maps.Equal(got.Hosting.Capacity, got.Capacity) ||
			got.Placements != 0 {
			return fmt.Errorf("it shows %+v", got)
		}
		return nil
	})
	r.Atoll("mc", "update", mc, "--capacity", "planes=7")
	if shown := r.Atoll("mc", "get", mc); !strings.Contains(shown, "Hosting --capacity") {
		t.Errorf("atoll mc get does not show the other capacity:\n%s", shown)
	}
	made, err := w.api.CreateCluster(t.Context(), platform.ClusterRequest{Name: "warm"})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("it is ready", func() error { return w.ready(made.ID) })
	if slots, _ := filepath.Glob(filepath.Join(hosting, "state", "clusters-"+made.ID, "*", "slot")); len(slots) != 1 {
		t.Errorf("the cluster has no warm plane: its slots are %v", slots)
	}
	if shown := r.Status().Planes; len(shown) != 1 || shown[0].Namespace != "clusters-"+made.ID ||
		len(shown[0].Walls) == 0 {
		t.Errorf("the planes are shown as %+v", shown)
	}
	if err := w.api.DeleteCluster(t.Context(), cluster.ID(made.ID), client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("nothing is left of it", func() error {
		if left, _ := filepath.Glob(filepath.Join(hosting, "state", "clusters-*")); len(left) > 0 {
			return errors.New(left[0])
		}
		return nil
	})
}
