// Package fleet holds the REST contract of placements and of what management
// clusters have free: the OpenAPI document and the types generated from it. It
// is served on CLM's port, beside CLM's own paths.
//
// It contains no logic and imports nothing of ours.
package fleet

import _ "embed"

//go:generate go tool oapi-codegen --config types.cfg.yaml openapi.yaml

// OpenAPI is the document, as YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte

// MaxPlannedMoves bounds the moves of one plan of a rebalancing, the clusters that the plan lists as staying, and the
// clusters that a caller takes out of it.
const MaxPlannedMoves = 100
