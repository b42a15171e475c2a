package hosted

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/cluster"
	"atoll.dev/test/localtest"
)

// A cluster of a customer who has chosen nothing gets a warm plane: what the region orders fits what hosting keeps
// ready. The region shows the plane as the cluster's, and no plane that waits.
func TestAClusterOfTheRegionGetsAWarmPlane(t *testing.T) {
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
