package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"atoll.dev/cluster"
	"atoll.dev/node"
	nodesupervisor "atoll.dev/node/supervisor"
)

// maxNodesDir is the longest path of a directory of nodes, in bytes. The Unix sockets of a node lie below it, and the
// kernel limits the path of a socket to 108 bytes.
const maxNodesDir = 55

// nodesDir returns the directory of the real nodes of a management cluster. It lies outside the home when the path of
// the home is too long.
func (t topology) nodesDir(mc cluster.ManagementCluster) string {
	if dir := filepath.Join(t.home.hostingDir(mc), "nodes"); len(dir) <= maxNodesDir {
		return dir
	}
	return filepath.Join(t.outerNodesDir(), strings.TrimPrefix(string(mc), "management-"))
}

// outerNodesDir returns the directory of all real nodes of a region whose home has a long path: in the temporary
// directory when the home is there, as in tests, and that directory has a short path; otherwise in /var/lib.
func (t topology) outerNodesDir() string {
	base := "/var/lib"
	if tmp := filepath.Clean(os.TempDir()); strings.HasPrefix(t.home.Dir, tmp+"/") && len(tmp) < len("/var/lib/xxxx") {
		base = tmp
	}
	return filepath.Join(base, "atoll-nodes-"+t.st.ID)
}

// nodeArgs returns the arguments of hosting for real nodes; none when the region has only simulated ones.
func (t topology) nodeArgs(mc cluster.ManagementCluster) []string {
	if t.st.Nodes != string(cluster.Local) {
		return nil
	}
	programs := nodePrograms(t.bin)
	args := []string{"--node-programs", t.bin.KubeVersion + "=" + programs, "--node-dir", t.nodesDir(mc)}
	if image := filepath.Join(filepath.Dir(programs), "demo-image.tar"); exists(image) {
		args = append(args, "--node-image", image)
	}
	return args
}

// nodePrograms returns the path of the file atoll-node, which has the programs of a node: beside atoll-kube, or beside
// this program.
func nodePrograms(bin Binaries) string {
	beside := filepath.Join(filepath.Dir(bin.Kube), "atoll-node")
	if exists(beside) {
		return beside
	}
	return filepath.Join(filepath.Dir(bin.Atoll), "atoll-node")
}

// checkNodes returns an error unless the provider of nodes is one that the region can offer on this machine.
func checkNodes(provider string, bin Binaries) error {
	switch provider {
	case string(cluster.Simulated):
		return nil
	case string(cluster.Local):
		if err := nodesupervisor.MissingError(nodesupervisor.Preflight(nodePrograms(bin))); err != nil {
			return fmt.Errorf("--nodes local: %w", err)
		}
		return nil
	}
	return fmt.Errorf("--nodes %s: it must be simulated or local", provider)
}

// stopNodes stops the real nodes of management clusters, all at the same time, and calls onStopped for each. The caller
// has stopped the hosting of these management clusters, which would start the nodes again.
func (t topology) stopNodes(ctx context.Context, clusters []cluster.ManagementCluster,
	onStopped func(name string)) error {
	var mu sync.Mutex
	var problems []error
	var wg sync.WaitGroup
	for _, mc := range clusters {
		dirs, _ := filepath.Glob(filepath.Join(t.nodesDir(mc), "*"))
		for _, dir := range dirs {
			running, err := node.Running(dir)
			if err == nil && !running {
				continue
			}
			wg.Go(func() {
				err := errors.Join(err, node.Stop(ctx, dir))
				mu.Lock()
				defer mu.Unlock()
				if problems = append(problems, err); err == nil {
					onStopped(string(mc) + "-node/" + filepath.Base(dir))
				}
			})
		}
	}
	wg.Wait()
	return errors.Join(problems...)
}

// RealNodes returns the path of the file atoll-node, and for each management cluster of the region the directory of its
// real nodes.
func (h Home) RealNodes() (programs string, dirs []string, err error) {
	st, err := h.State()
	if err != nil {
		return "", nil, err
	}
	bin, err := findBinaries()
	if err != nil {
		return "", nil, err
	}
	t := newTopology(h, st, bin)
	for _, mc := range st.Clusters {
		dirs = append(dirs, t.nodesDir(mc))
	}
	return nodePrograms(bin), dirs, nil
}
