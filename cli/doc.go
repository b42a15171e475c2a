// Package cli is the command line of Atoll. It composes the commands of three packages by who types them:
//
//   - customer: clusters and node pools, by the Platform API
//   - operator: a region on this machine, management clusters, works, keys, the lifecycle manager's resources
//   - services: the region's processes, each a subcommand that production runs
//
// What they share, the streams and the output formats, is in package terminal. One file has one verb or noun.
//
// The packages below cli may import everything. Only cmd/atoll imports cli.
package cli
