// Package operator has the commands that an operator of a region types: a region on this machine
// (up, down, status, env, logs), its accounts, keys, management clusters and works, and the commands below
// `atoll clm`, `atoll maestro` and `atoll pki` that are no services.
//
// A command calls the region by its clients, as the operator, or works on the home directory of a region on this
// machine. Only package cli imports it.
package operator
