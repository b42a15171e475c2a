// Package adapters holds the task configs that Atoll brings along, each in a
// directory of its own with config.yaml and task.yaml, as `atoll adapter serve
// --dir` reads them.
//
// placement, pull-secret, hosted-cluster, node-pool and credential run in a region
// that configures nothing else: they are the road from a Cluster of the lifecycle
// manager to a control plane on a management cluster (decision 034).
//
// The others are examples: cl-maestro makes a namespace and a ConfigMap on a
// management cluster by a ManifestWork, cl-namespace a namespace by a Kubernetes
// API, np-configmap a ConfigMap for a node pool.
// hosted-cluster has its manifests in files of their own: work.yaml, and other.yaml for the other side of a move.
// They are YAML; there is nothing to import but the files.
package adapters

import (
	"embed"
	"path"
)

// Files are the directories.
//
//go:embed */*.yaml
var Files embed.FS

// Reader returns the function that reads a file which the task of an adapter names, as adapter.ParseTask calls it.
func Reader(adapter string) func(file string) ([]byte, error) {
	return func(file string) ([]byte, error) { return Files.ReadFile(path.Join(adapter, path.Base(file))) }
}
