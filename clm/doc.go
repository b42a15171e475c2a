// Package clm is the cluster lifecycle manager's API: the single source of
// truth of a region. It serves the kinds of resources that a registry of
// entities names, by hyperfleet-api's REST contract, and keeps what adapters
// report of them.
//
// All state is in the store. A request changes resources, their references and
// their history in one transaction, and is answered after the commit; the
// sentinel, watches and whoever else has to act follow the store's feed. What
// a request comes to is decided by functions of what is stored (decide.go,
// package status); the rest does the reading and writing around them.
//
// It is a service: package cli composes it, and no other service imports it.
package clm
