// Package gitops reads the configuration of all regions from a tree of YAML
// files and renders the files from which each regional cluster and each
// management cluster is deployed.
//
// Load reads a tree and returns a Fleet: every region with the settings that it
// inherits from the defaults, its environment and its sector, and every
// management cluster with the settings that it inherits from its region. Each
// value has the file and the line that set it, and the values that it replaced (Explain).
// Render returns the files of a Fleet: Argo CD applications, Helm values,
// Terraform variables and the region's own configuration. Compare returns the
// differences between two Fleets.
//
// These are pure functions of the files. Directory.Write and Directory.Compare are
// the shell around them. The package runs no programs, resolves no secrets and
// calls no service; cli composes it.
//
// # The tree
//
//	config/defaults.yaml                          settings of every region
//	config/ENVIRONMENT/environment.yaml           its sectors in their order, and settings
//	config/ENVIRONMENT/sectors/SECTOR.yaml        settings of a sector; may be absent
//	config/ENVIRONMENT/regions/REGION.yaml        its sector, its management clusters, and settings
//
// Or one file in the form of the ROSA regional platform:
//
//	config/config.yaml                            shards
//
// Settings has the keys. Mappings merge key by key, lists and scalars replace, and
// null deletes what a level inherits.
package gitops
