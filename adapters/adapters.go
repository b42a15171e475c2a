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
// They are YAML; there is nothing to import but the files.
package adapters

import "embed"

// Files are the directories.
//
//go:embed */*.yaml
var Files embed.FS
