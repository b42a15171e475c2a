// Package local runs a whole region as processes on this machine: PostgreSQL,
// the certificate authority, the broker, Maestro, the lifecycle manager, the Platform API, and each
// local management cluster with its agent. It executes `atoll SERVICE`, the
// same subcommands that production runs; it has no logic of the services.
//
// A supervisor process starts the others, restarts a process that ends, and adopts
// running processes when it starts; its children outlive it. All state lies below
// one home directory: region.json has the region's name, ports and management
// clusters; run/ has a record of each running process. The files of a management
// cluster, its kubeconfig above all, lie below management/; only that cluster's own
// processes get them.
//
// Only package cli imports it. It imports api, internal and tools, never a service.
package local
