package arm

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"atoll.dev/store"
)

// TestEveryAPIVersionKeepsTheFieldsOfOthers writes random properties with one api-version, and puts back
// with each api-version what that shows: the stored properties stay.
func TestEveryAPIVersionKeepsTheFieldsOfOthers(t *testing.T) {
	for _, kind := range []store.Kind{kindCluster, kindPool, kindAuth} {
		rapid.Check(t, func(t *rapid.T) {
			fields := fieldsOf(kind)
			created := acceptance{version: version(rapid.IntRange(0, len(versions)-1).Draw(t, "version")), isNew: true}
			stored := created.object("", fields, draw(t, fields), nil)
			for v := range versions {
				again := acceptance{version: version(v)}
				after := again.object("", fields, version(v).show(fields, stored), stored)
				if len(again.problems) > len(created.problems) {
					t.Fatalf("%s: %v; at the creation %v", versions[v], again.problems, created.problems)
				}
				for name, value := range stored {
					if !reflect.DeepEqual(after[name], value) && !isFilled(fields, name) {
						t.Fatalf("%s: %s was %v and is %v", versions[v], name, value, after[name])
					}
				}
			}
		})
	}
}

// isFilled reports whether a newer api-version adds members with defaults to a field.
func isFilled(fields []field, name string) bool {
	for _, f := range fields {
		if f.name == name {
			for _, m := range f.members {
				if m.since > 0 && m.fallback != nil || isFilled(f.members, m.name) {
					return true
				}
			}
		}
	}
	return false
}

// draw returns random values of fields; some are left out.
func draw(t *rapid.T, fields []field) map[string]any {
	values := map[string]any{}
	for _, f := range fields {
		if f.visibility == readOnly || !f.required && rapid.Bool().Draw(t, "without "+f.name) {
			continue
		}
		switch f.kind {
		case text:
			values[f.name] = rapid.SampledFrom([]string{"None", "FIPS", "Public", "1.36", "x"}).Draw(t, f.name)
		case integer:
			values[f.name] = json.Number(rapid.SampledFrom([]string{"0", "23", "64", "9999"}).Draw(t, f.name))
		case boolean:
			values[f.name] = rapid.Bool().Draw(t, f.name)
		case object:
			values[f.name] = draw(t, f.members)
		case list:
			values[f.name] = []any{}
			if len(f.members) > 0 {
				values[f.name] = []any{draw(t, f.members)}
			}
		case dictionary, anything:
			values[f.name] = map[string]any{"a": "b"}
		}
	}
	return values
}

// TestAMergePatchKeepsNulls merges as RFC 7396, but leaves nulls for the checks after it.
func TestAMergePatchKeepsNulls(t *testing.T) {
	got := merge(map[string]any{"a": map[string]any{"b": "1", "c": "2"}, "d": "3"},
		map[string]any{"a": map[string]any{"b": nil}, "d": map[string]any{"e": "4"}})
	want := map[string]any{"a": map[string]any{"b": nil, "c": "2"}, "d": map[string]any{"e": "4"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

// TestSizesOfAzureBecomeInstanceTypes checks sizes with and without suffixes.
func TestSizesOfAzureBecomeInstanceTypes(t *testing.T) {
	for size, want := range map[string]string{"Standard_D8s_v3": "m6a.2xlarge", "Standard_E4as_v5": "r6a.xlarge",
		"Standard_F16s_v2": "c6a.4xlarge", "Standard_D96ds_v5": "m6a.24xlarge", "Standard_D3_v2": "", "Standard_NC6": "",
		"m6a.large": ""} {
		got, known := instanceTypeOf(size)
		if known != (want != "") || known && got != want {
			t.Errorf("%s: %s, %v", size, got, known)
		}
	}
}
