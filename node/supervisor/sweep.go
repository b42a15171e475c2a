package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"atoll.dev/node"
)

// Sweep removes the cgroups, links and bridges of nodes whose processes have ended without a supervisor that could
// remove them, and returns their names. It does nothing to nodes that run.
func Sweep() ([]string, error) {
	// Under the lock no supervisor has made a cgroup that its first process has not entered yet.
	release, err := lockNetworkAndCgroups()
	if err != nil {
		return nil, err
	}
	defer release()
	var removed []string
	var problems []error
	all, err := readHierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		nodes, err := os.ReadDir(filepath.Join(h.Path, nodesGroup))
		if err != nil {
			continue
		}
		for _, entry := range nodes {
			dir := filepath.Join(h.Path, nodesGroup, entry.Name())
			if !entry.IsDir() || hasProcesses(dir) {
				continue
			}
			problems = append(problems, removeTree(dir))
			removed = append(removed, dir)
		}
		_ = os.Remove(filepath.Join(h.Path, nodesGroup)) // fails while a node is there
	}
	links, err := netlink.LinkList()
	if err != nil {
		return removed, errors.Join(append(problems, err)...)
	}
	for _, link := range links {
		if !isNodesBridge(link) {
			continue
		}
		name := link.Attrs().Name
		if ports, err := os.ReadDir(filepath.Join("/sys/class/net", name, "brif")); err != nil || len(ports) > 0 {
			continue
		}
		problems = append(problems, removeBridge(name))
		removed = append(removed, "bridge "+name)
	}
	return removed, errors.Join(problems...)
}

// SweepNode does for one node what Sweep does for all: it removes the cgroups and the link of the node with a home,
// and the bridge when no other node uses it. It kills processes that remain in the cgroups. The caller has ended the
// node's supervisor. Remains of other nodes do not delay it. It may be repeated.
func SweepNode(home, bridge string) error {
	release, err := lockNetworkAndCgroups()
	if err != nil {
		return err
	}
	defer release()
	all, err := readHierarchies()
	if err != nil {
		return err
	}
	c := node.Config{Home: home, Network: node.Network{Bridge: bridge}}
	names := machineNamesOf(c)
	if err := errors.Join(removeCgroup(all, names.cgroup), disconnectBridge(c.Network, names.link)); err != nil {
		return fmt.Errorf("removing what the node of %s has left: %w", home, err)
	}
	return nil
}
