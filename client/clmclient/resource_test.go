package clmclient

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/api/clm"
)

// raws are JSON texts of every type.
var raws = []string{`{}`, `{"a":[1,{"b":"}"}],"a":null}`, `[]`, `"a\u00e9\n"`, `null`, `-1.5e3`, `7`, `true`}

// resources generates resources with values in every member.
func resources() *rapid.Generator[clm.Resource] {
	times := rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "microseconds")).UTC()
	})
	raw := rapid.Custom(func(t *rapid.T) json.RawMessage {
		return json.RawMessage(rapid.SampledFrom(raws).Draw(t, "raw"))
	})
	return rapid.MakeCustom[clm.Resource](rapid.MakeConfig{Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[time.Time]():       times.AsAny(),
		reflect.TypeFor[json.RawMessage](): raw.AsAny(),
	}})
}

// Resources are decoded by another library than encoding/json, with the same result: member for member, and with an
// error for a member of a wrong type.
func TestAResourceIsReadAsEncodingJSONReadsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(resources().Draw(t, "resource"))
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "changed") {
			var members map[string]json.RawMessage
			if err := json.Unmarshal(text, &members); err != nil {
				t.Fatal(err)
			}
			members["unknown"] = json.RawMessage(`[{"id": "no"}]`)
			name := rapid.SampledFrom(slices.Sorted(maps.Keys(members))).Draw(t, "member")
			members[name] = json.RawMessage(rapid.SampledFrom(raws).Draw(t, "value"))
			if text, err = json.MarshalIndent(members, "", " "); err != nil {
				t.Fatal(err)
			}
		}
		var want clm.Resource
		wantErr := json.Unmarshal(text, &want)
		got, err := ResourceOf(text)
		if (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(got.Resource, want) {
			t.Fatalf("%s\ngot  %+v, %v\nwant %+v, %v", text, got.Resource, err, want, wantErr)
		}
	})
}

func TestADamagedResourceIsAnError(t *testing.T) {
	text := `{"id":"a","generation":1,"status":{"conditions":[{"type":"b"}]},"statuses":[{"adapter":"c"}]}`
	for cut := range len(text) {
		if _, err := ResourceOf(json.RawMessage(text[:cut])); err == nil {
			t.Errorf("%s is read without an error", text[:cut])
		}
	}
	for _, wrong := range []string{text + "x", `{"generation":2147483648}`, `{"created_time":"yesterday"}`,
		`{"status":{"conditions":[{"observed_generation":"1"}]}}`, `[]`, `"text"`} {
		if _, err := ResourceOf(json.RawMessage(wrong)); err == nil {
			t.Errorf("%s is read without an error", wrong)
		}
	}
}
