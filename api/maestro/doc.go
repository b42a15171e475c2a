// Package maestro holds Maestro's REST contract: the OpenAPI document and the
// types generated from it.
//
// It contains no logic and imports nothing of ours.
package maestro

import _ "embed"

//go:generate go tool oapi-codegen --config types.cfg.yaml openapi.yaml

// ExtensionsHeader is the request header that asks, with the value true, for
// the members of answers that the original Maestro does not have. Without it
// they are left out, since clients that are generated from the original's
// document may refuse members that it does not name.
const ExtensionsHeader = "X-Atoll-Extensions"

// OpenAPI is the document, as YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte

// BasePath is the path of the REST API.
const BasePath = "/api/maestro/v1"
