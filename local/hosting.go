package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"atoll.dev/api/platform"
	"atoll.dev/internal/atomicfile"
)

func hostingName(cluster string) string { return cluster + "-hosting" }
func routerName(cluster string) string  { return cluster + "-router" }

// hosting runs the planes of customers on a management cluster. It has no
// identity of the region: it talks to its own cluster and its own router only.
// The planes outlive it, and bear its mark with NAMESPACE/HOSTEDCLUSTER behind.
func (t topology) hosting(cluster string) Spec {
	dir := t.home.hostingDir(cluster)
	return t.service(Spec{
		Name: hostingName(cluster), Phase: phaseEdges, After: []string{planeName(cluster)},
		Args: []string{"hosting", "--kubeconfig", filepath.Join(dir, "hosting.kubeconfig"), "--data-dir", dir,
			"--advertise", t.address(routerName(cluster)), "--release", t.bin.KubeVersion + "=" + t.bin.Kube},
		Prepare: func(ctx context.Context) error { return t.bootstrap(ctx, cluster, dir) },
	}, hostingName(cluster)+"-ops")
}

// router is a management cluster's port for its planes.
func (t topology) router(cluster string) Spec {
	return t.service(Spec{
		Name: routerName(cluster), Phase: phaseEdges, Address: "tls://" + t.address(routerName(cluster)),
		Args: []string{"router", "--listen", t.address(routerName(cluster)),
			"--control", filepath.Join(t.home.hostingDir(cluster), "control.sock"), "--data-dir",
			t.home.Path("management", cluster, "router")},
	}, routerName(cluster), routerName(cluster)+"-ops")
}

func (h Home) hostingDir(cluster string) string { return h.Path("management", cluster, "hosting") }

// bootstrap prepares a local management cluster for its agent and its hosting:
// once for each program that comes, since one may bring new kinds and rights.
func (t topology) bootstrap(ctx context.Context, cluster, dir string) error {
	agent := t.home.Path("management", cluster, "agent")
	for _, d := range []string{dir, agent} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	kubeconfig, done := filepath.Join(dir, "hosting.kubeconfig"), filepath.Join(dir, "bootstrapped-by")
	by := binaryID(t.bin.Atoll)
	if last, err := os.ReadFile(done); err == nil && string(last) == by && exists(kubeconfig) {
		return nil
	}
	_, err := t.command(ctx, "mc", "bootstrap", "--kubeconfig", t.home.AdminKubeconfig(cluster),
		"--out", filepath.Join(agent, "agent.kubeconfig"), "--hosting-out", kubeconfig)
	if err != nil {
		return err
	}
	return atomicfile.Write(done, []byte(by), 0o600)
}

// capacityOf is what fits into the memory of a machine beside the region, for
// each of the management clusters that share it.
func capacityOf(memoryMiB int64, clusters int) platform.Capacity {
	const region, plane = 4 << 10, 400
	left := max((memoryMiB-region)/int64(max(clusters, 1)), plane)
	return platform.Capacity{"planes": left / plane, "memory_mib": left}
}

// machineMemory is the memory of this machine in MiB.
func machineMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("memory of this machine: %w", err)
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit) >> 20), nil
}

// ownerOf is the process to which a marked process belongs: hosting, of a
// customer's plane, and else itself.
func ownerOf(name string) (owner string, isPlane bool) {
	owner, _, isPlane = strings.Cut(name, "/")
	return owner, isPlane
}

// PlaneStatus is one customer's plane that runs.
type PlaneStatus struct {
	ManagementCluster string `json:"management_cluster"`
	Namespace         string `json:"namespace"`
	HostedCluster     string `json:"hosted_cluster"`
	PID               int    `json:"pid"`
	RSSBytes          int64  `json:"rss_bytes"`
	PSSBytes          int64  `json:"pss_bytes"` // with memory that processes share divided among them
}

// planes lists the customers' planes that run, by management cluster and name.
// One that sleeps has no process.
func (h Home) planes(homeID string) []PlaneStatus {
	list := []PlaneStatus{}
	for name, pid := range marked(homeID) {
		owner, isPlane := ownerOf(name)
		cluster, hosting := strings.CutSuffix(owner, hostingName(""))
		if !isPlane || !hosting {
			continue
		}
		namespace, hc, _ := strings.Cut(strings.TrimPrefix(name, owner+"/"), "/")
		list = append(list, PlaneStatus{ManagementCluster: cluster, Namespace: namespace, HostedCluster: hc,
			PID: pid, RSSBytes: residentBytes(name, pid), PSSBytes: proportionalBytes(pid)})
	}
	slices.SortFunc(list, func(a, b PlaneStatus) int {
		return strings.Compare(a.ManagementCluster+"/"+a.HostedCluster, b.ManagementCluster+"/"+b.HostedCluster)
	})
	return list
}

// stopPlanes stops all planes of a hosting that is gone, at once.
func stopPlanes(ctx context.Context, homeID, hosting string) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for name, pid := range marked(homeID) {
		if owner, isPlane := ownerOf(name); !isPlane || owner != hosting {
			continue
		}
		wg.Go(func() {
			err := stray(name, pid).stop(ctx)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stray is the record of a process that was found by its mark.
func stray(name string, pid int) Record {
	st, err := readStat(pid)
	if err != nil {
		return Record{Name: name}
	}
	return Record{Name: name, PID: pid, Start: st.start, Boot: bootID()}
}

// planeLogs finds the logs of customers' planes, by the name of the HostedCluster.
func (h Home) planeLogs() map[string]string {
	paths, _ := filepath.Glob(h.Path("management", "*", "hosting", "planes", "*", "*", "plane.log"))
	logs := map[string]string{}
	for _, p := range paths {
		logs[filepath.Base(filepath.Dir(p))] = p
	}
	return logs
}
