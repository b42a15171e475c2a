// Package maestro holds Maestro's REST contract: the OpenAPI document and the
// types generated from it.
//
// It contains no logic and imports nothing of ours.
package maestro

import _ "embed"

//go:generate go tool oapi-codegen --config types.cfg.yaml openapi.yaml

// OpenAPI is the document, as YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
