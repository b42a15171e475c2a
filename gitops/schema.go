package gitops

import (
	_ "embed"
	"encoding/json"
	"sync"
)

// Schema is the JSON Schema of the files of a tree. `go generate` makes it from the
// comments of Settings, regionKeys and environmentKeys; it accepts each key at each
// level, and Load refuses those of another level.
//
//go:embed schema.json
var Schema []byte

// schemaNode is the part of a JSON Schema that documents keys.
type schemaNode struct {
	Schema      string                 `json:"$schema,omitempty"`
	Title       string                 `json:"title,omitempty"`
	Description string                 `json:"description,omitempty"`
	Type        []string               `json:"type,omitempty"`
	Properties  map[string]*schemaNode `json:"properties,omitempty"`
	Additional  any                    `json:"additionalProperties,omitempty"` // false, or the schema of free keys
	Items       *schemaNode            `json:"items,omitempty"`
}

// schemaRoot returns the decoded Schema.
var schemaRoot = sync.OnceValue(func() *schemaNode {
	root := &schemaNode{}
	if err := json.Unmarshal(Schema, root); err != nil {
		panic("gitops: schema.json: " + err.Error()) // a test holds it against the types
	}
	return root
})
