// Package platform is the contract of the Platform API, the region's public
// API: its OpenAPI document and the types generated from it.
//
// Package front/rosa serves it, package client calls it.
//
// It contains no logic and imports nothing of ours.
package platform

import _ "embed"

//go:generate go tool oapi-codegen -config types.cfg.yaml openapi.yaml

// OpenAPI is the document, in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
