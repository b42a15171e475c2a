// Package fleet knows the region's management clusters, what each can hold and
// holds, and decides which of them hosts a cluster's control plane.
//
// The decision is a function (Decide) of what a cluster demands and of what is
// known of the management clusters: filter, then score, with a reason for each
// that does not fit. What it comes to, a Placement, and what that reserves are
// written in one transaction of CLM's database; placements are made one after
// the other, so no two of them take the same room. A cluster for which there is
// no room waits: fleet follows the store's feed, and asks for work on those
// that wait when there may be room for them.
//
// Its routes are served on CLM's port, by CLM's process. It is a service:
// package cli composes it, and no other service imports it.
package fleet
