package rollout

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
	"time"
)

var update = flag.Bool("update", false, "write schema.json")

// TestSchemaIsMadeFromTheComments fails when a key has no comment, or when schema.json is not what the types and
// their comments say.
func TestSchemaIsMadeFromTheComments(t *testing.T) {
	root := schemaOf(t, reflect.TypeFor[Rollout](), fieldComments(t))
	root["$schema"], root["title"] = "https://json-schema.org/draft/2020-12/schema", "Atoll rollout"
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
		t.Errorf("schema.json is not what the types say (%v); run go test ./rollout -update", err)
	}
}

func schemaOf(t *testing.T, typ reflect.Type, comments map[string]string) map[string]any {
	if typ == reflect.TypeFor[time.Duration]() {
		return map[string]any{"type": "string", "pattern": "^[0-9.hms]+$"}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return schemaOf(t, typ.Elem(), comments)
	case reflect.Struct:
		members := map[string]any{}
		for f := range typ.Fields() {
			if !f.IsExported() {
				continue
			}
			key := f.Tag.Get("yaml")
			member := schemaOf(t, f.Type, comments)
			description := comments[typ.Name()+"."+f.Name]
			if description == "" || key == "" {
				t.Errorf("%s.%s has no comment, or no key", typ.Name(), f.Name)
			}
			member["description"] = description
			members[key] = member
		}
		return map[string]any{"type": "object", "properties": members, "additionalProperties": false}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t, typ.Elem(), comments)}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t, typ.Elem(), comments)}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Interface:
		return map[string]any{}
	}
	t.Fatalf("a key of type %s", typ)
	return nil
}

// fieldComments returns the comments of the fields of the structs in file.go, by TYPE.FIELD.
func fieldComments(t *testing.T) map[string]string {
	f, err := parser.ParseFile(token.NewFileSet(), "file.go", nil, parser.ParseComments)
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
