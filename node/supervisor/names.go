package supervisor

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"

	"atoll.dev/node"
)

// nodesGroup is the name of the cgroup that contains the cgroups of all nodes.
const nodesGroup = "atoll-nodes"

// The bridges that this package makes have a group, which the kernel sets when it makes them, so that sweeping finds
// them whenever their supervisor was killed. The alias is for people, and marks the bridges of earlier versions.
const (
	linkGroup = 0x61746f6c // "atol"
	linkAlias = "atoll node"
)

// machineNames are the names of a node's cgroup and link on this machine. They depend on the node's home only, so a new
// supervisor finds those of a killed one.
type machineNames struct {
	cgroup string // below each hierarchy
	link   string // the machine's end of the node's link
}

func machineNamesOf(c node.Config) machineNames {
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(c.Home)))[:10]
	return machineNames{cgroup: filepath.Join(nodesGroup, id), link: "an" + id}
}

// Paths in a node's root.
const (
	programsDir      = "/opt/atoll"
	kubernetes       = programsDir + "/atoll-node"
	containerd       = programsDir + "/node/containerd"
	containerdSocket = "/run/containerd/containerd.sock"
)

// pauseImage is the image of the first process of each pod. Its archive is among the programs.
const pauseImage = "atoll.dev/pause:v1"
