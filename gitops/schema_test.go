package gitops

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write schema.json and the golden files")

// TestSchemaIsMadeFromTheComments fails when a key has no comment, or when schema.json
// is not what the types and their comments say.
func TestSchemaIsMadeFromTheComments(t *testing.T) {
	comments := fieldComments(t, "settings.go")
	root := &schemaNode{Schema: "https://json-schema.org/draft/2020-12/schema", Title: "Atoll configuration",
		Type: []string{"object", "null"}, Properties: map[string]*schemaNode{}, Additional: false}
	for _, typ := range []reflect.Type{reflect.TypeFor[Settings](), reflect.TypeFor[environmentKeys](),
		reflect.TypeFor[regionKeys]()} {
		for key, s := range schemaOf(t, typ, comments).Properties {
			root.Properties[key] = s
		}
	}
	want, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("schema.json"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("schema.json is not what the types say (%v); run go test ./gitops -update", err)
	}
}

func schemaOf(t *testing.T, typ reflect.Type, comments map[string]string) *schemaNode {
	s := &schemaNode{}
	switch typ.Kind() {
	case reflect.Struct:
		s.Type, s.Properties, s.Additional = []string{"object", "null"}, map[string]*schemaNode{}, false
		for f := range typ.Fields() {
			key := strings.Split(f.Tag.Get("json"), ",")[0]
			member := schemaOf(t, f.Type, comments)
			if member.Description = comments[typ.Name()+"."+f.Name]; member.Description == "" || key == "" {
				t.Errorf("%s.%s has no comment, or no key", typ.Name(), f.Name)
			}
			s.Properties[key] = member
		}
	case reflect.Map:
		s.Type, s.Additional = []string{"object", "null"}, schemaOf(t, typ.Elem(), comments)
	case reflect.Slice:
		s.Type, s.Items = []string{"array", "null"}, schemaOf(t, typ.Elem(), comments)
	case reflect.String:
		s.Type = []string{"string", "null"}
	case reflect.Int64:
		s.Type = []string{"integer", "null"}
	case reflect.Bool:
		s.Type = []string{"boolean", "null"}
	}
	return s
}

// fieldComments returns the comments of the fields of all structs in a file, by TYPE.FIELD.
func fieldComments(t *testing.T, file string) map[string]string {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	return comments
}
