// Package clm holds the REST contract of the cluster lifecycle manager: the
// OpenAPI document and the types generated from it.
//
// It contains no logic and imports nothing of ours.
package clm

import _ "embed"

//go:generate go tool oapi-codegen --config types.cfg.yaml openapi.yaml

// OpenAPI is the document, as YAML. Its paths below /resources are those of
// every kind; a server repeats them for each kind that it has.
//
//go:embed openapi.yaml
var OpenAPI []byte
