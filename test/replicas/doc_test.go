// Package replicas tests that replicas of one adapter share the resources of a real lifecycle manager,
// over a real broker, while replicas start, are killed, and lose their leases: no two replicas ever
// work on the same resource.
package replicas
