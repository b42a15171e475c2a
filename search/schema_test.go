package search

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// listSchema is a schema with a field of each kind.
var listSchema = Schema{
	Table: "resources",
	Fields: map[string]Field{
		"name":   {SQL: "d.name", Type: Text},
		"spec":   {SQL: "d.spec", Type: JSON, Dotted: true},
		"labels": {SQL: "d.labels", Type: JSON, Dotted: true, Flat: true},
		"status": {SQL: "d.status", Type: JSON, Within: func([]string) (Field, bool) { return Field{}, false }},
	},
	Limits: Limits{Bytes: 20},
}

func TestASchemaOrdersByItsFields(t *testing.T) {
	bounded := listSchema
	bounded.OrderedText = 128
	for _, c := range []struct {
		schema Schema
		field  string
		want   Order
	}{
		{listSchema, "name", Order{Expr: "d.name", Type: "text"}},
		{listSchema, "spec", Order{Expr: "d.spec", Type: "jsonb"}},
		{bounded, "spec", Order{Expr: "left((d.spec)::text, 128)", Type: "text"}},
	} {
		if got, ok := c.schema.OrderBy(c.field); !ok || got != c.want {
			t.Errorf("order by %s: %+v, %v; want %+v", c.field, got, ok, c.want)
		}
	}
	for _, name := range []string{"labels", "status", "none", ""} {
		if got, ok := listSchema.OrderBy(name); ok {
			t.Errorf("order by %s: %+v", name, got)
		}
	}
}

func TestASchemaParsesWithinItsLimitsAndFields(t *testing.T) {
	if _, err := listSchema.Parse("name = 'a'"); err != nil {
		t.Error(err)
	}
	if _, err := listSchema.Parse("name = '" + strings.Repeat("a", 20) + "'"); err == nil {
		t.Error("Parse accepts a text that exceeds the limit of the schema")
	}
	only := listSchema.Only("spec", "labels")
	if got := slices.Sorted(maps.Keys(only.Fields)); !slices.Equal(got, []string{"labels", "spec"}) {
		t.Errorf("the reduced schema has the fields %q", got)
	}
	if _, err := only.Parse("name = 'a'"); err == nil {
		t.Error("Parse accepts a field that the schema does not have")
	}
	if len(listSchema.Fields) != 4 {
		t.Error("Only changed its schema")
	}
}
