package hosted

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/test/localtest"
	"atoll.dev/test/testsite"
)

const (
	lightTime       = 15 * time.Second // of faults; ATOLL_SOAK sets another
	recoveryTimeout = 4 * time.Minute  // of the region after the faults
)

const mc = "management-01"

// world is a region with one management cluster.
type world struct {
	t   *testing.T
	r   *localtest.Region
	api *client.Client
}

func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	localtest.Eventually(w.t, recoveryTimeout, func() error {
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

// Kill -9 of planes, router, hosting, agent, the management cluster's API server, and of all at
// once, while clusters are created and deleted and customers write into theirs: every acknowledged
// write exists, every cluster converges to its order, and deleted ones leave nothing.
func TestI1I9I12HostedClustersUnderKills(t *testing.T) {
	rng := localtest.Seed(t)
	span := testsite.Soak(t, lightTime)
	r := localtest.Restarted(t)
	w := &world{t: t, r: r, api: r.API()}
	var customers []*customer
	for i := range 2 {
		customers = append(customers, w.createCustomer(fmt.Sprintf("kept-%d", i)))
	}

	writing, stopWriting := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() {
		stopWriting()
		wg.Wait()
	}()
	for _, c := range customers {
		wg.Go(func() { c.write(writing) })
	}
	for _, c := range customers { // before the first kill: a slow machine may not write within the span
		w.eventually("the customer "+c.name+" has written", c.hasWritten)
	}
	ctx, stop := context.WithTimeout(t.Context(), span)
	defer stop()
	waits := rand.New(rand.NewPCG(rng.Uint64(), 1))
	cycles := 0
	wg.Go(func() {
		cycles = w.churn(ctx, "churn", func() time.Duration {
			return time.Duration(waits.IntN(6000)) * time.Millisecond
		})
	})
	kills := w.kill(ctx, rng, span)
	stopWriting()
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, c := range customers {
		t.Logf("%s: %d ConfigMaps and %d counts acknowledged, %d calls not", c.name, c.written, c.counted, c.tries)
	}
	t.Logf("killed %v; %d clusters came and went", kills, cycles)

	begun := time.Now()
	kept := map[string]bool{}
	for _, c := range customers {
		kept["clusters-"+c.id] = true
		w.eventually("it is ready", func() error { return w.ready(c.id) })
		w.eventually("nothing is lost", func() error { return c.checkAcknowledged(t.Context()) })
	}
	w.eventually("the others left nothing", func() error { return w.checkOnly(kept) })
	t.Logf("all is as ordered %s after the last kill", time.Since(begun).Round(100*time.Millisecond))

	begun = time.Now()
	for _, c := range customers {
		if err := w.api.DeleteCluster(t.Context(), cluster.ID(c.id), client.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	w.eventually("nothing is left", func() error { return w.checkOnly(nil) })
	t.Logf("nothing was left %s after the deletion", time.Since(begun).Round(100*time.Millisecond))
}

// kill kills random parts of the region, one after the other, until ctx ends: control planes, the router, and so on.
// After half of span, and each minute from then on, it kills all processes at once. It returns the number of kills by
// the kind of part.
func (w *world) kill(ctx context.Context, rng *rand.Rand, span time.Duration) map[string]int {
	kills := map[string]int{}
	half := time.Now().Add(span / 2)
	for ctx.Err() == nil {
		what := []string{"plane", "plane", "router", "hosting", "agent", "mc"}[rng.IntN(6)]
		if now := time.Now(); now.After(half) {
			what, half = "everything", now.Add(time.Minute)
		}
		kills[what]++
		status := w.r.Status()
		var pids []int
		switch what {
		case "plane":
			if n := len(status.Planes); n > 0 {
				pids = append(pids, status.Planes[rng.IntN(n)].PID)
			}
		case "everything": // the supervisor is the first
			for _, p := range status.Processes {
				pids = append(pids, p.PID)
			}
			for _, p := range status.Planes {
				pids = append(pids, p.PID)
			}
		case "mc":
			pids = append(pids, w.r.Process(mc+"-plane").PID)
		default:
			pids = append(pids, w.r.Process(mc+"-"+what).PID)
		}
		for _, pid := range pids {
			if pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
			}
		}
		if what == "everything" {
			w.r.Up()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(300+rng.IntN(1500)) * time.Millisecond):
		}
	}
	return kills
}

// checkOnly returns an error if anything exists besides the clusters of these namespaces: in the
// Platform API, on the management cluster, as files or as processes.
func (w *world) checkOnly(kept map[string]bool) error {
	list, err := w.api.Clusters(w.t.Context(), client.ClusterQuery{})
	if err != nil {
		return err
	}
	for _, c := range list {
		if !kept["clusters-"+c.ID] {
			return fmt.Errorf("the API shows %s: %s %s", c.Name, c.Status.Phase, c.Status.Message)
		}
	}
	out, err := w.r.TryKubectl(mc, "get", "namespaces", "-o", "name")
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		name := strings.TrimPrefix(strings.TrimSpace(line), "namespace/")
		if strings.HasPrefix(name, "clusters-") && !kept[name] {
			return fmt.Errorf("the management cluster has namespace %s", name)
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(w.r.Home, "management", mc, "hosting", "planes", "*", "*"))
	for _, dir := range dirs {
		if !kept[filepath.Base(filepath.Dir(dir))] {
			return fmt.Errorf("files in %s", dir)
		}
	}
	for _, p := range w.r.Status().Planes {
		if !kept[p.Namespace] {
			return fmt.Errorf("process %d of %s", p.PID, p.HostedCluster)
		}
	}
	bundles, err := w.api.ListBundles(w.t.Context(), remote.ListOptions{Page: 1, Size: 1})
	if err == nil && kept == nil && bundles.Total > 0 {
		err = fmt.Errorf("Maestro has %d works, such as %s", bundles.Total, bundles.Items[0].Name)
	}
	return err
}
