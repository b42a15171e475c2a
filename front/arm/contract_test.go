package arm

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	contract "atoll.dev/api/arm"
	"atoll.dev/store"
)

// TestTheContractHasTheFieldsOfTheTable compares the OpenAPI document with the tables of fields in both directions:
// names, types, who may write a field and since when, what is required, defaults, enumerations and bounds.
func TestTheContractHasTheFieldsOfTheTable(t *testing.T) {
	document, err := openapi3.NewLoader().LoadFromData(contract.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if newest := versions[len(versions)-1]; document.Info.Version != newest {
		t.Errorf("the contract is of %s; the newest api-version is %s", document.Info.Version, newest)
	}
	for kind, name := range map[store.Kind]string{kindCluster: "ClusterProperties", kindPool: "NodePoolProperties",
		kindAuth: "ExternalAuthProperties"} {
		for _, wrong := range compareWithContract(name, fieldsOf(kind), document.Components.Schemas[name].Value) {
			t.Error(wrong)
		}
	}
}

// compareWithContract returns the differences between fields and the properties of a schema.
func compareWithContract(path string, fields []field, schema *openapi3.Schema) (wrong []string) {
	named := map[string]bool{}
	for _, f := range fields {
		named[f.name] = true
		property := schema.Properties[f.name]
		if property == nil {
			wrong = append(wrong, fmt.Sprintf("%s.%s is missing in the contract", path, f.name))
			continue
		}
		if slices.Contains(schema.Required, f.name) != f.required {
			wrong = append(wrong, fmt.Sprintf("%s.%s: required is %t in the table", path, f.name, f.required))
		}
		wrong = append(wrong, compareField(path+"."+f.name, f, property.Value)...)
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if !named[name] {
			wrong = append(wrong, fmt.Sprintf("%s.%s is missing in the table", path, name))
		}
	}
	return wrong
}

// compareField returns the differences between a field and its schema.
func compareField(path string, f field, s *openapi3.Schema) (wrong []string) {
	differ := func(what string, inTable, inContract any) {
		if fmt.Sprint(inTable) != fmt.Sprint(inContract) {
			wrong = append(wrong, fmt.Sprintf("%s: %s is %v in the table and %v in the contract", path, what, inTable,
				inContract))
		}
	}
	types := map[kind]string{text: "string", integer: "integer", boolean: "boolean", object: "object", list: "array",
		dictionary: "object"}
	found := ""
	if s.Type != nil {
		found = strings.Join(s.Type.Slice(), ",")
	}
	differ("type", types[f.kind], found)
	written := updatable
	if s.ReadOnly {
		written = readOnly
	} else if _, marked := s.Extensions["x-ms-mutability"]; marked {
		written = createOnly
	}
	differ("visibility", f.visibility, written)
	differ("since", f.since, sinceOf(s, "x-since", always))
	differ("updatable since", f.updatableSince, sinceOf(s, "x-updatable-since", 0))
	if f.kind != object {
		differ("default", shownDefault(f.fallback), shownDefault(s.Default))
	}
	switch {
	case f.kind == list && len(f.members) > 0:
		wrong = append(wrong, compareWithContract(path+"[]", f.members, s.Items.Value)...)
	case f.kind == object && len(f.members) > 0:
		return append(wrong, compareWithContract(path, f.members, s)...)
	}
	if f.visibility == readOnly {
		return wrong
	}
	_, refused := s.Extensions["x-refused"]
	for _, value := range probesOf(f.kind, s) {
		answer := f.checkValue(value)
		if isRefused := strings.HasPrefix(answer, "Forbidden: "); f.kind != list && f.kind != boolean &&
			isRefused != refused {
			differ("refusal", isRefused, refused)
		}
		if permitted, known := contractPermits(s, value); known && !refused && permitted != (answer == "") {
			wrong = append(wrong, fmt.Sprintf("%s: the contract permits %.40v: %t; the table answers %q", path, value,
				permitted, answer))
		}
	}
	if options, isEnumeration := strings.CutPrefix(f.checkValueIfText("no such value"),
		`Unsupported value: "no such value": supported values: `); isEnumeration {
		quoted := make([]string, len(s.Enum))
		for i, option := range s.Enum {
			quoted[i] = fmt.Sprintf("%q", option)
		}
		differ("enumeration", options, strings.Join(quoted, ", "))
	}
	return wrong
}

func (f field) checkValueIfText(value string) string {
	if f.kind != text {
		return ""
	}
	return f.checkValue(value)
}

// sinceOf returns the api-version that an extension of a schema names.
func sinceOf(s *openapi3.Schema, extension string, otherwise version) version {
	name, isText := s.Extensions[extension].(string)
	if !isText {
		return otherwise
	}
	v, known := parseVersion(name)
	if !known {
		return math.MaxInt32
	}
	return v
}

func shownDefault(value any) string {
	data, _ := json.Marshal(value) // defaults are texts, numbers and booleans
	return string(data)
}

// probesOf returns values at and beside the bounds of a field, and beside those that a schema without bounds has.
func probesOf(of kind, s *openapi3.Schema) (values []any) {
	switch of {
	case integer:
		ends := []float64{math.MinInt32, math.MaxInt32}
		if s.Min != nil {
			ends = append(ends, *s.Min-1, *s.Min)
		}
		if s.Max != nil {
			ends = append(ends, *s.Max, *s.Max+1)
		}
		for _, n := range ends {
			values = append(values, json.Number(fmt.Sprintf("%d", int64(n))))
		}
	case text:
		for _, option := range s.Enum {
			values = append(values, option)
		}
		values = append(values, "no such value", strings.Repeat("a", 5000))
		if s.MaxLength != nil {
			values = append(values, strings.Repeat("a", int(*s.MaxLength)), strings.Repeat("a", int(*s.MaxLength)+1))
		}
	case boolean:
		values = append(values, true, false)
	case list:
		sizes := []int{0, 1, 5000}
		if s.MaxItems != nil {
			sizes = append(sizes, int(*s.MaxItems), int(*s.MaxItems)+1)
		}
		for _, n := range sizes {
			items := make([]any, n)
			for i := range items {
				items[i] = "a"
			}
			values = append(values, items)
		}
	default:
		values = append(values, map[string]any{})
	}
	return values
}

// contractPermits reports whether a schema's enumeration and bounds permit a value. known is false for a text with
// neither: the table may demand a form that a schema cannot state, such as the id of a resource.
func contractPermits(s *openapi3.Schema, value any) (permitted, known bool) {
	if len(s.Enum) > 0 {
		return slices.Contains(s.Enum, value), true
	}
	switch v := value.(type) {
	case json.Number:
		n, _ := v.Float64() // the probe is a number
		return (s.Min == nil || n >= *s.Min) && (s.Max == nil || n <= *s.Max), true
	case string:
		return s.MaxLength == nil || len(v) <= int(*s.MaxLength), s.MaxLength != nil && !strings.Contains(v, " ")
	case []any:
		return len(v) >= int(s.MinItems) && (s.MaxItems == nil || len(v) <= int(*s.MaxItems)), true
	}
	return true, true
}
