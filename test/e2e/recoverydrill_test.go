package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/backup/region"
	"atoll.dev/client"
	"atoll.dev/internal/quick"
	"atoll.dev/test/localtest"
)

const (
	drillClusters = 20
	// drillLimit is the longest time from the command that restores a region until the region and all of its clusters
	// serve again.
	drillLimit = 5 * time.Minute
)

// A region with 20 clusters loses its machine twice: at first without the management cluster, whose control planes run
// on, then with it. Each time everything that was acknowledged is there again within five minutes of the command, at
// the addresses of before. It starts 20 control planes, so it runs on request only.
func TestI1ARegionOf20ClustersServesFiveMinutesAfterTheCommand(t *testing.T) {
	quick.Slow(t, "restores a region of 20 clusters twice, ten minutes and 6 GB of memory")
	r := localtest.New(t, "--backups")
	d := &drill{r: r, dir: t.TempDir()}
	for i := range drillClusters {
		made, err := r.API().CreateCluster(t.Context(), platform.ClusterRequest{Name: fmt.Sprintf("drill-%02d", i)})
		if err != nil {
			t.Fatal(err)
		}
		d.clusters = append(d.clusters, made)
	}
	begun := time.Now()
	d.awaitClusters(t)
	t.Logf("%d clusters were ready after %s", drillClusters, time.Since(begun).Round(time.Second))
	for _, c := range d.clusters {
		made, err := r.API().CreateCredential(t.Context(), client.ClusterID(c.ID),
			platform.CredentialRequest{ExpirationSeconds: 6 * 3600})
		if err != nil {
			t.Fatal(err)
		}
		write(t, d.kubeconfigFile(c), []byte(made.Kubeconfig))
	}

	planes := d.planes(t)
	d.createConfigMaps(t, "first")
	d.awaitBackups(t)
	loseMachine(t, r)
	d.restoreRegion(t, "first")
	for id, pid := range d.planes(t) {
		if planes[id] != pid {
			t.Errorf("the control plane of %s was started again: process %d, then %d", id, planes[id], pid)
		}
	}

	d.createConfigMaps(t, "second")
	d.awaitBackups(t)
	for _, p := range r.Status().Processes { // the supervisor is the first
		if p.PID != 0 {
			localtest.Kill(t, p.PID)
		}
	}
	for _, pid := range d.planes(t) {
		localtest.Kill(t, pid)
	}
	loseMachine(t, r)
	localtest.Eventually(t, 3*time.Minute, func() error { return os.RemoveAll(filepath.Join(r.Home, "management")) })
	d.restoreRegion(t, "first", "second")
}

// drill is a region with clusters, and a directory with the kubeconfig of each cluster's customer.
type drill struct {
	r        *localtest.Region
	dir      string // of the kubeconfigs
	clusters []client.Cluster
}

func (d *drill) kubeconfigFile(c client.Cluster) string { return filepath.Join(d.dir, c.ID) }

// runKubectl runs kubectl as the customer of a cluster and returns its output.
func (d *drill) runKubectl(t *testing.T, c client.Cluster, args ...string) (string, error) {
	out, err := runKubectlWithFile(t, d.kubeconfigFile(c), 20*time.Second, args...)
	if err != nil {
		err = fmt.Errorf("%s: %w", c.Name, err)
	}
	return out, err
}

// planes returns the processes of the clusters' control planes by the HostedCluster's name.
func (d *drill) planes(t *testing.T) map[string]int {
	pids := map[string]int{}
	for _, p := range d.r.Status().Planes {
		pids[p.HostedCluster] = p.PID
	}
	if len(pids) != drillClusters {
		t.Errorf("%d control planes run, want %d", len(pids), drillClusters)
	}
	return pids
}

// awaitClusters waits until the region's API shows all clusters ready.
func (d *drill) awaitClusters(t *testing.T) {
	t.Helper()
	api := d.r.API()
	localtest.Eventually(t, 10*time.Minute, func() error {
		for _, c := range d.clusters {
			now, err := api.Cluster(t.Context(), client.ClusterID(c.ID))
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			if now.Status.Phase != platform.ClusterPhaseReady {
				return fmt.Errorf("%s: %+v", c.Name, now.Status)
			}
		}
		return nil
	})
}

// createConfigMaps creates a ConfigMap with a name in each cluster.
func (d *drill) createConfigMaps(t *testing.T, name string) {
	t.Helper()
	for _, c := range d.clusters {
		if _, err := d.runKubectl(t, c, "create", "configmap", name, "--from-literal=cluster="+c.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitBackups waits until the copies of the region and of all clusters have everything that is acknowledged now.
func (d *drill) awaitBackups(t *testing.T) {
	t.Helper()
	acknowledged := time.Now()
	api := d.r.API()
	localtest.Eventually(t, 5*time.Minute, func() error {
		for _, c := range d.clusters {
			b, err := api.Backups(t.Context(), client.ClusterID(c.ID))
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			if b.To == nil || b.To.Before(acknowledged) {
				return fmt.Errorf("the backup of %s ends at %v", c.Name, b.To)
			}
		}
		var windows []region.Window
		out, err := d.r.Try("region", "backups", "--store", filepath.Join(d.r.Home, "backups", "store.yaml"), "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &windows)
		}
		if err == nil && (len(windows) == 0 || !windows[len(windows)-1].To.After(acknowledged)) {
			err = fmt.Errorf("the copies of the region are %v", windows)
		}
		return err
	})
}

// restoreRegion restores the region, and measures the time until its API shows all clusters ready and each cluster's
// customer reads the ConfigMaps with the kubeconfig of before.
func (d *drill) restoreRegion(t *testing.T, configMaps ...string) {
	t.Helper()
	begun := time.Now()
	d.r.Atoll("region", "restore")
	restored := time.Since(begun)
	d.r.Up()
	up := time.Since(begun)
	d.awaitClusters(t)
	ready := time.Since(begun)
	localtest.Eventually(t, 10*time.Minute, func() error {
		var errs []error
		for _, c := range d.clusters {
			for _, name := range configMaps {
				got, err := d.runKubectl(t, c, "get", "configmap", name, "-o", "jsonpath={.data.cluster}")
				if err == nil && got != c.ID {
					err = fmt.Errorf("%s: ConfigMap %s has %q", c.Name, name, got)
				}
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	took := time.Since(begun)
	t.Logf("restored after %s, up after %s, all clusters ready after %s, read by their customers after %s",
		restored.Round(time.Second), up.Round(time.Second), ready.Round(time.Second), took.Round(time.Second))
	if took > drillLimit {
		t.Errorf("the region served again after %s, want at most %s", took, drillLimit)
	}
	var orphans []json.RawMessage
	if err := json.Unmarshal([]byte(d.r.Atoll("mc", "orphans", "-o", "json")), &orphans); err != nil || len(orphans) > 0 {
		t.Errorf("orphans after the restore: %s %v", orphans, err)
	}
}
