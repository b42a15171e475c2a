package clm

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"sigs.k8s.io/yaml"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
)

// document is the OpenAPI document for the server's kinds: the paths of
// /resources once more for each, and once more below its owner.
func (r *Registry) document() (json.RawMessage, error) {
	var doc map[string]any
	if err := yaml.Unmarshal(api.OpenAPI, &doc); err != nil {
		return nil, fmt.Errorf("the OpenAPI document: %w", err)
	}
	paths := doc["paths"].(map[string]any)
	general := map[string]any{}
	for path, item := range paths {
		if tail, ok := strings.CutPrefix(path, basePath+"/"+resources); ok && tail != "/reconcile" {
			general[tail] = item
		}
	}
	for _, e := range r.entities {
		for tail, item := range general {
			paths[basePath+"/"+e.Plural+tail] = renamed(item.(map[string]any), e.Kind, nil)
			if e.parent != nil {
				parent := map[string]any{"name": "parent_id", "in": "path", "required": true, "schema": map[string]any{"type": "string"}}
				paths[basePath+"/"+e.parent.Plural+"/{parent_id}/"+e.Plural+tail] = renamed(item.(map[string]any), e.parent.Kind+e.Kind, parent)
			}
		}
	}
	return json.Marshal(doc)
}

// renamed is a path item whose operations have ids of their own, and perhaps
// one parameter more.
func renamed(item map[string]any, name string, parameter any) map[string]any {
	item = maps.Clone(item)
	if parameter != nil {
		parameters, _ := item["parameters"].([]any)
		item["parameters"] = append([]any{parameter}, parameters...)
	}
	for key, value := range item {
		if operation, ok := value.(map[string]any); ok {
			operation = maps.Clone(operation)
			operation["operationId"] = fmt.Sprintf("%s%s", operation["operationId"], name)
			item[key] = operation
		}
	}
	return item
}

func (s *Server) getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	doc, err := s.registry.document()
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, doc)
}
