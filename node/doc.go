// Package node runs one real node of a cluster on this machine: kubelet, kube-proxy, containerd and the agent of
// konnectivity, in namespaces and a cgroup of the node's own.
//
// One process, `atoll node run --config FILE`, supervises one node. Config is the content of the file. The supervisor
// connects the node to the bridge of its cluster, starts the node's programs, starts those again that end, and removes
// everything but the node's home directory when it stops. See docs/decisions/107.
//
// The programs are upstream's and are built by the module in node/programs. Nothing of Atoll imports that module.
//
// The package is a tool: services import it, it imports no service.
package node
