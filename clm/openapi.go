package clm

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
)

type object = map[string]any

// document is the OpenAPI document for the server's kinds: the paths of
// /resources once more for each, and once more below its owner. The provider's
// schemas are in it, and requests of the kinds that have one refer to it.
func (r *Registry) document(specs SpecSchemas, extension Extension) (json.RawMessage, error) {
	var doc object
	if err := yaml.Unmarshal(api.OpenAPI, &doc); err != nil {
		return nil, fmt.Errorf("the OpenAPI document: %w", err)
	}
	schemas := doc["components"].(object)["schemas"].(object)
	for name, schema := range specs.schemas {
		if schemas[name] == nil {
			schemas[name] = schema
		}
	}
	paths := doc["paths"].(object)
	general := object{}
	for path, item := range paths {
		if tail, ok := strings.CutPrefix(path, basePath+"/"+resources); ok && tail != "/reconcile" {
			general[tail] = item
		}
	}
	for _, e := range r.entities {
		typed := specs.has(e.SpecSchemaName)
		if typed {
			ref := object{"type": "object", "properties": object{"spec": schemaRef(e.SpecSchemaName)}}
			schemas[e.Kind+"Create"] = object{"allOf": []any{schemaRef("ResourceCreate"), ref}}
			schemas[e.Kind+"Patch"] = object{"allOf": []any{schemaRef("ResourcePatch"), ref}}
		}
		for tail, item := range general {
			item := renamed(item.(object), e.Kind, nil)
			if typed {
				typeBody(item, "post", tail == "", e.Kind+"Create")
				typeBody(item, "patch", true, e.Kind+"Patch")
			}
			paths[basePath+"/"+e.Plural+tail] = item
			if e.parent != nil && tail != "/history" {
				parent := object{"name": "parent_id", "in": "path", "required": true,
					"schema": object{"type": "string"}}
				paths[basePath+"/"+e.parent.Plural+"/{parent_id}/"+e.Plural+tail] = renamed(item, e.parent.Kind, parent)
			}
		}
	}
	if extension != nil {
		if err := extend(doc, extension.OpenAPI()); err != nil {
			return nil, err
		}
	}
	return json.Marshal(doc)
}

// extend adds another document's paths and components to a document. What both
// have is the first's.
func extend(doc object, more []byte) error {
	var other object
	if err := yaml.Unmarshal(more, &other); err != nil {
		return fmt.Errorf("the OpenAPI document of an extension: %w", err)
	}
	add := func(to, from any) {
		for name, v := range from.(object) {
			if to := to.(object); to[name] == nil {
				to[name] = v
			}
		}
	}
	add(doc["paths"], other["paths"])
	for name, components := range other["components"].(object) {
		add(doc["components"].(object)[name], components)
	}
	return nil
}

func schemaRef(schema string) object { return object{"$ref": "#/components/schemas/" + schema} }

// renamed is a path item whose operations have ids of their own, and perhaps
// one parameter more.
func renamed(item object, name string, parameter any) object {
	item = maps.Clone(item)
	if parameter != nil {
		parameters, _ := item["parameters"].([]any)
		item["parameters"] = append([]any{parameter}, parameters...)
	}
	for key, value := range item {
		if operation, ok := value.(object); ok {
			operation = maps.Clone(operation)
			operation["operationId"] = fmt.Sprintf("%s%s", operation["operationId"], name)
			item[key] = operation
		}
	}
	return item
}

// typeBody makes the JSON body of an operation one of a schema. A merge patch
// is no such body: its nulls remove.
func typeBody(item object, method string, wanted bool, schema string) {
	operation, ok := item[method].(object)
	if !ok || !wanted {
		return
	}
	body := maps.Clone(operation["requestBody"].(object))
	content := maps.Clone(body["content"].(object))
	content["application/json"] = object{"schema": schemaRef(schema)}
	body["content"] = content
	operation["requestBody"] = body
}

func (s *Server) getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	doc, err := s.document()
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, doc)
}

//go:embed openapi.html
var openAPIPage string

var openAPITemplate = template.Must(template.New("openapi").Parse(openAPIPage))

// operation is one line of the page.
type operation struct{ Method, Path, Summary string }

// getOpenAPIPage answers the document for people, as a page that needs nothing
// from elsewhere.
func (s *Server) getOpenAPIPage(w http.ResponseWriter, _ *http.Request) error {
	text, err := s.document()
	if err != nil {
		return err
	}
	var doc struct {
		Info  struct{ Title, Description string }
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return err
	}
	var operations []operation
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, method := range []string{"get", "post", "put", "patch", "delete"} {
			var o operation
			if item, ok := doc.Paths[path][method]; ok && json.Unmarshal(item, &o) == nil {
				operations = append(operations, operation{strings.ToUpper(method), path, o.Summary})
			}
		}
	}
	var page bytes.Buffer
	if err := openAPITemplate.Execute(&page, map[string]any{"Info": doc.Info, "Operations": operations,
		"Document": basePath + "/openapi"}); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("X-Content-Type-Options", "nosniff")
	_, err = w.Write(page.Bytes())
	return err
}
