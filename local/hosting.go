package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/internal/accounttoken"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/local/objectstore"
	"atoll.dev/plane"
)

func hostingName(mc cluster.ManagementCluster) string { return string(mc + "-hosting") }
func routerName(mc cluster.ManagementCluster) string  { return string(mc + "-router") }

// hosting returns the process that runs the planes of customers on a management cluster. It has no
// identity of the region: it calls only its own cluster and its own router. The planes outlive it;
// their mark is its mark with /NAMESPACE/HOSTEDCLUSTER appended.
func (t topology) hosting(mc cluster.ManagementCluster) Spec {
	dir := t.home.hostingDir(mc)
	args := []string{"hosting", "--kubeconfig", filepath.Join(dir, "hosting.kubeconfig"), "--data-dir", dir,
		"--advertise", t.address(routerName(mc))}
	for _, release := range t.bin.releases() {
		args = append(args, "--release", release+"="+cmp.Or(t.bin.Kubes[release], t.bin.Kube))
	}
	if idle := t.st.declaredSettings().Clusters[mc].Idle; idle != "" {
		args = append(args, "--idle", idle)
	}
	after := []string{planeName(mc)}
	if t.st.Backups {
		args = append(args, "--backups", filepath.Join(t.home.backupsDir(), objectstore.StoreFile))
		after = append(after, objectStoreName)
	}
	if t.st.Azure {
		args = append(args, "--issuer-networks", "127.0.0.0/8") // the stand-in for Entra is an issuer, too
	}
	if t.st.WarmPlanes > 0 {
		args = append(args, "--warm-planes", strconv.Itoa(t.st.WarmPlanes), "--warm-domain", t.baseDomain())
		if memory, err := machineMemory(); err == nil {
			args = append(args, "--capacity", mapText(t.st.limitsOf(mc, memory, t.bin).Capacity))
		}
	}
	args = append(args, t.nodeArgs(mc)...)
	return t.completeService(Spec{
		Name: hostingName(mc), Phase: phaseEdges, After: after, Args: args,
		Prepare: func(ctx context.Context) error { return t.bootstrapCluster(ctx, mc, dir) },
	}, hostingName(mc)+"-ops")
}

// router returns the process that serves a management cluster's port for its planes.
func (t topology) router(mc cluster.ManagementCluster) Spec {
	return t.completeService(Spec{
		Name: routerName(mc), Phase: phaseEdges, Address: "tls://" + t.address(routerName(mc)),
		Args: []string{"router", "--listen", t.address(routerName(mc)),
			"--control", filepath.Join(t.home.hostingDir(mc), "control.sock"), "--data-dir",
			t.home.Path("management", string(mc), "router")},
	}, routerName(mc), routerName(mc)+"-ops")
}

func (h Home) hostingDir(mc cluster.ManagementCluster) string {
	return h.Path("management", string(mc), "hosting")
}

// bootstrapCluster prepares a local management cluster for its agent and its hosting. It runs once
// for each version of the program, since a new version may need new kinds and rights, and when the
// region was stopped for so long that a token has expired.
func (t topology) bootstrapCluster(ctx context.Context, mc cluster.ManagementCluster, dir string) error {
	agent := t.home.Path("management", string(mc), "agent")
	for _, d := range []string{dir, agent} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	kubeconfig, doneFile := filepath.Join(dir, "hosting.kubeconfig"), filepath.Join(dir, "bootstrapped-by")
	programID := binaryID(t.bin.Atoll)
	if lastID, err := os.ReadFile(doneFile); err == nil && string(lastID) == programID && hasValidToken(kubeconfig) &&
		hasValidToken(filepath.Join(agent, "agent.kubeconfig")) {
		return nil
	}
	_, err := t.runAtoll(ctx, "mc", "bootstrap", "--kubeconfig", t.home.AdminKubeconfig(mc),
		"--out", filepath.Join(agent, "agent.kubeconfig"), "--hosting-out", kubeconfig)
	if err != nil {
		return err
	}
	return atomicfile.Write(doneFile, []byte(programID), 0o600)
}

// hasValidToken reports whether a kubeconfig exists whose token will be valid for some hours. The process that uses the
// file replaces it whenever half of a token's life has passed (package accounttoken).
func hasValidToken(kubeconfig string) bool {
	const margin = 6 * time.Hour
	info, err := os.Stat(kubeconfig)
	return err == nil && time.Since(info.ModTime()) < accounttoken.Life-margin
}

// capacityShare returns the capacity of one of the management clusters that share a machine: the
// memory that the region itself does not need, in equal parts.
func capacityShare(memoryMiB int64, clusters int) platform.Capacity {
	const region, plane = 4 << 10, 400
	share := max((memoryMiB-region)/int64(max(clusters, 1)), plane)
	return platform.Capacity{"planes": share / plane, "memory_mib": share}
}

// machineMemory returns the memory of this machine in MiB.
func machineMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("memory of this machine: %w", err)
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit) >> 20), nil
}

// splitProcessName returns the supervised process to which a marked process belongs: hosting for a
// customer's plane, else the process itself.
func splitProcessName(name string) (owner string, isPlane bool) {
	owner, _, isPlane = strings.Cut(name, "/")
	return owner, isPlane
}

// PlaneStatus is one of the customers' planes that run.
type PlaneStatus struct {
	ManagementCluster cluster.ManagementCluster `json:"management_cluster"`
	Namespace         string                    `json:"namespace"`
	HostedCluster     string                    `json:"hosted_cluster"`
	PID               int                       `json:"pid"`
	RSSBytes          int64                     `json:"rss_bytes"`
	PSSBytes          int64                     `json:"pss_bytes"` // with memory that processes share divided among them
	Walls             []string                  `json:"walls"`     // that stand around it, see docs/decisions/110
}

// planes lists the customers' planes that run, by management cluster and name. A sleeping plane has
// no process.
func (h Home) planes(homeID string) []PlaneStatus {
	list := []PlaneStatus{}
	for name, pid := range markedProcesses(homeID) {
		owner, isPlane := splitProcessName(name)
		mc, isHosting := strings.CutSuffix(owner, hostingName(""))
		if !isPlane || !isHosting {
			continue
		}
		namespace, hc, _ := strings.Cut(strings.TrimPrefix(name, owner+"/"), "/")
		dir := filepath.Join(h.hostingDir(cluster.ManagementCluster(mc)), "planes", namespace, hc)
		if namespace == warmNamespace {
			namespace, hc = h.ownerOfSlot(cluster.ManagementCluster(mc), hc)
		}
		// No namespace begins so: it is the scratch plane of a restore drill, or a warm plane that no cluster has.
		if strings.HasPrefix(namespace, "_") {
			continue
		}
		list = append(list, PlaneStatus{ManagementCluster: cluster.ManagementCluster(mc), Namespace: namespace,
			HostedCluster: hc, PID: pid, RSSBytes: residentBytes(name, pid), PSSBytes: proportionalBytes(pid),
			Walls: wallsOf(dir, pid)})
	}
	slices.SortFunc(list, func(a, b PlaneStatus) int {
		return cmp.Or(cmp.Compare(a.ManagementCluster, b.ManagementCluster),
			cmp.Compare(a.HostedCluster, b.HostedCluster))
	})
	return list
}

// warmNamespace is where hosting has planes that wait for a cluster, below "planes" and "state". The directory of a
// plane below "planes" stays there when a cluster gets it, and the file "slot" in the plane's state names it.
const warmNamespace = "_warm"

// ownerOfSlot returns the plane that has a slot of warm planes: namespace and name of its HostedCluster, or the warm
// plane itself.
func (h Home) ownerOfSlot(mc cluster.ManagementCluster, slot string) (namespace, hc string) {
	files, _ := filepath.Glob(filepath.Join(h.hostingDir(mc), "state", "*", "*", "slot"))
	for _, f := range files {
		if content, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(content)) == slot {
			return filepath.Base(filepath.Dir(filepath.Dir(f))), filepath.Base(filepath.Dir(f))
		}
	}
	return warmNamespace, slot
}

// wallsOf returns the walls around a plane that is ready: those that its process reports, and "memory" when the process
// is in a control group of hosting.
func wallsOf(dir string, pid int) []string {
	walls := []string{}
	if r, err := (plane.Config{Dir: dir}).Readiness(); err == nil && r.PID == pid {
		walls = append(walls, r.Walls...)
	}
	if groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil &&
		strings.Contains(string(groups), "/"+plane.GroupPrefix) {
		walls = append(walls, "memory")
	}
	return walls
}

// removeGroups removes the control groups of the planes of management clusters. All of the planes have ended.
func (h Home) removeGroups(ctx context.Context, clusters []cluster.ManagementCluster) error {
	var problems []error
	for _, mc := range clusters {
		problems = append(problems, plane.RemoveGroups(ctx, h.hostingDir(mc)))
	}
	return errors.Join(problems...)
}

// stopPlanes stops all planes of a hosting that no longer runs, all at the same time.
func stopPlanes(ctx context.Context, homeID, hosting string) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for name, pid := range markedProcesses(homeID) {
		if owner, isPlane := splitProcessName(name); !isPlane || owner != hosting {
			continue
		}
		wg.Go(func() {
			err := recordOf(name, pid).stop(ctx)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// recordOf returns a record of a process that was found by its mark.
func recordOf(name string, pid int) Record {
	st, err := readStat(pid)
	if err != nil {
		return Record{Name: name}
	}
	return Record{Name: name, PID: pid, Start: st.start, Boot: bootID()}
}

// planeLogs returns the paths of the logs of customers' planes, by the name of the HostedCluster.
func (h Home) planeLogs() map[string]string {
	paths, _ := filepath.Glob(h.Path("management", "*", "hosting", "state", "*", "*", "plane.log"))
	logs := map[string]string{}
	for _, p := range paths {
		if strings.HasPrefix(filepath.Base(filepath.Dir(filepath.Dir(p))), "_") { // no customer's
			continue
		}
		logs[filepath.Base(filepath.Dir(p))] = p
	}
	return logs
}
