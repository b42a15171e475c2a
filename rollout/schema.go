package rollout

import _ "embed"

// Schema is the JSON Schema of the file of a rollout. `go test ./rollout -update` makes it from the comments of
// Rollout.
//
//go:embed schema.json
var Schema []byte
