// Package agent works for the region inside a management cluster: it applies
// the ManifestWorks that Maestro sends, prunes and deletes them, repairs drift,
// and reports their status, with outbound connections only.
//
// The decisions are one pure state machine, [core]: events and the clock go
// in, effects come out; it does no I/O and starts no goroutine. The shell
// around it (agent.go) owns the core in one goroutine and carries its effects out:
// calls to the Kubernetes API (kube.go), watches (watch.go), events on the bus
// (wire.go), the store on disk (store.go).
//
// Three rules hold everywhere. A work is on disk before its message is
// acknowledged and before anything of it is applied, so that the agent knows every
// object in the cluster after any crash (I6, I12). Absence is never taken
// for a deletion: only a source's request deletes, and an empty or damaged
// store deletes nothing. Ownership is recorded as Open Cluster Management's
// agent records it, so that either agent can take over from the other.
//
// The package is a service: it imports api, internal and tools, and no other
// service imports it.
package agent
