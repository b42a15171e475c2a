// Package clm is the cluster lifecycle manager's API: the single source of
// truth of a region. It serves the kinds of resources that a registry of
// entities names, by hyperfleet-api's REST contract, and stores the reports of
// adapters on them.
//
// All state is in the store. A request changes resources, their references and
// their history in one transaction, and the server answers after the commit.
// The sentinel, watches and other followers read the changes from the store's
// feed. Pure functions of the stored state compute the outcome of a request
// (decide.go, package status); the rest of the package reads and writes.
//
// It is a service: package cli composes it, and no other service imports it.
package clm
