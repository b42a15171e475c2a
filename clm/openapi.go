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

// object is a decoded JSON object.
type object = map[string]any

// document returns the OpenAPI document of the server. It copies the paths of /resources for each kind,
// and once more below the kind's owner. It adds the provider's schemas; the bodies that create or change a
// resource refer to the schema of its kind.
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
				if tail == "" {
					setBodySchema(item, "post", e.Kind+"Create")
				}
				setBodySchema(item, "patch", e.Kind+"Patch")
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

// extend adds the paths and components of another document to doc. doc keeps its own where both have one of
// a name.
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

// schemaRef returns a reference to a schema of the document.
func schemaRef(schema string) object { return object{"$ref": "#/components/schemas/" + schema} }

// renamed returns a copy of a path item whose operation ids end with name. It has the parameter, too, unless
// that is nil.
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

// setBodySchema sets the schema of the JSON body of an operation, if the item has the operation. The body of a
// merge patch keeps its schema, because its nulls remove members.
func setBodySchema(item object, method, schema string) {
	operation, ok := item[method].(object)
	if !ok {
		return
	}
	body := maps.Clone(operation["requestBody"].(object))
	content := maps.Clone(body["content"].(object))
	content["application/json"] = object{"schema": schemaRef(schema)}
	body["content"] = content
	operation["requestBody"] = body
}

// getOpenAPI answers with the OpenAPI document as JSON.
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

// operation is one line of the page of getOpenAPIPage.
type operation struct{ Method, Path, Summary string }

// getOpenAPIPage answers with a list of the operations as an HTML page, which loads no other file.
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
