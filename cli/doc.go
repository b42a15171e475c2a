// Package cli is the command line of Atoll. It composes the commands of three packages, one for each kind of user:
//
//   - customer: clusters and node pools, by the Platform API
//   - operator: a region on this machine, management clusters, works, keys, the lifecycle manager's resources
//   - services: the region's processes, each a subcommand that production runs
//
// Package terminal has their common part: the streams and the output formats. Each file has one command, such as
// cluster_get.go, or the common parts of one noun, such as cluster.go.
//
// The packages below cli may import everything. Only cmd/atoll imports cli.
package cli
