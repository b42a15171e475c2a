// Package replicas has replicas of one adapter share the resources of a real
// lifecycle manager, over a real broker, while they come, are killed, and lose
// their leases: no resource is ever worked on by two.
package replicas
