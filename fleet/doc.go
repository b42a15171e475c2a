// Package fleet has the region's management clusters, their capacity and reservations, and decides which
// of them hosts a cluster's control plane.
//
// The decision is a function (Decide) of a cluster's demand and the state of the management clusters: it
// filters, then scores, with a reason for each that does not fit. One transaction of CLM's database writes
// the result, a Placement, and its reservation, after it has checked that the chosen management cluster
// still fits. A cluster without room waits: fleet follows the store's feed and requests work for waiting
// clusters when there may be room for them. To read the package, start at decide.go and assign.go.
//
// Its routes are served on CLM's port, by CLM's process. It is a service:
// package cli composes it, and no other service imports it.
package fleet
