// Package local runs a whole region as processes on this machine: PostgreSQL,
// the certificate authority, the broker, Maestro, the lifecycle manager, the Platform API, and each
// local management cluster with its agent. It executes `atoll SERVICE`, the
// same subcommands that production runs; it holds no logic of theirs.
//
// A supervisor process starts the others, restarts what dies and adopts what
// it finds running; its children outlive it. All state lies below one home
// directory: what was decided once (name, ports, clusters) in region.json, what
// runs now in run/. Whatever a management cluster owns, its kubeconfig above
// all, lies below management/ and is handed to nothing but that cluster's own
// processes.
//
// It is imported by package cli only. It imports api, internal and tools,
// never a service.
package local
