// Package arm holds the contract of the resource types of hosted clusters that front/arm serves: an OpenAPI document.
// The types generated from it are those of the program examples/azure-sdk, which is a module of its own.
//
// It contains no logic and imports nothing of ours.
package arm

import _ "embed"

//go:generate go tool oapi-codegen --config types.cfg.yaml openapi.yaml

// OpenAPI is the document, as YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
