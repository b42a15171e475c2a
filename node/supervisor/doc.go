// Package supervisor runs one node: it makes the node's namespaces, cgroup and network, and keeps its programs running.
//
// There are two processes of Atoll for each node. The supervisor, `atoll node run`, stays on the machine: it connects
// the node to its bridge, dials the API server for it, writes its status and removes what remains. Init, the first
// process of the node's process namespace, mounts the node's file system and starts the programs. The two share a
// socket. When either ends, the other one ends, too, and with init every process of the node, pods included.
//
// The node's root file system is a new one in memory. It has the machine's programs and libraries, read-only, and below
// /var the directories of the node's home. Nothing else of the machine is visible in it.
package supervisor
