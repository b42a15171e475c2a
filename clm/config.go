package clm

import (
	_ "embed"
	"fmt"

	"sigs.k8s.io/yaml"
)

// DefaultEntities are the kinds of a region that configures no others.
//
//go:embed entities.yaml
var DefaultEntities []byte

// ParseRegistry reads a YAML document with the key entities.
func ParseRegistry(document []byte) (*Registry, error) {
	var file struct {
		Entities []Entity `json:"entities"`
	}
	if err := yaml.UnmarshalStrict(document, &file); err != nil {
		return nil, fmt.Errorf("reading the entities: %w", err)
	}
	return NewRegistry(file.Entities)
}
