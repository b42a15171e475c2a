// Package hosting runs hosted control planes on a management cluster that has
// no HyperShift: it follows the HostedClusters there, runs a plane for each,
// one atoll-kube process, and says in the HostedCluster's status, in
// HyperShift's words, how the plane is.
//
// A plane is a process of its own that outlives hosting and is found again by
// the next one; its data lies in a directory of its own until the
// HostedCluster is finalized. What is decided (valid? which release? asleep?
// which conditions?) are pure functions; a runner for each plane owns its
// process.
//
// The packages below are other parts of the same service: loop, nodepool,
// credential, router. Nobody but cli imports them.
package hosting
