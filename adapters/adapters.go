// Package adapters holds the task configs that Atoll brings along, each in a
// directory of its own with config.yaml and task.yaml, as `atoll adapter serve
// --dir` reads them.
//
// cl-maestro runs in a region that configures nothing else: by a ManifestWork it
// makes a namespace and a ConfigMap on a management cluster. cl-namespace makes
// a namespace by a Kubernetes API, np-configmap a ConfigMap for a node pool.
// They are YAML; there is nothing to import but the files.
package adapters

import "embed"

// Files are the directories.
//
//go:embed */*.yaml
var Files embed.FS
