// Package cli is the command line of Atoll, one file per verb: the operator's
// commands (up, status, work, mc, key, ...) and the services as subcommands,
// composed here out of their packages with nothing but flags between.
//
// It may import everything; only cmd/atoll imports it.
package cli
