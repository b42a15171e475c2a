package cluster

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Data of reports are decoded by another library than encoding/json, with the same result: a member of a wrong type is
// empty, and the others are decoded.
func TestDataOfReportsAreReadAsEncodingJSONReadsThem(t *testing.T) {
	t.Run("placement", checkData[PlacementData])
	t.Run("hosted cluster", checkData[HostedClusterData])
	t.Run("node pool", checkData[NodePoolData])
	t.Run("rotations", checkData[map[string]RotationData])
	t.Run("upgrade", checkData[UpgradeData])
}

func checkData[T any](t *testing.T) {
	values := []string{`null`, `1`, `1.5`, `"t"`, `"2026-01-02T03:04:05Z"`, `[1]`, `{}`, `true`, `"a\u00e9\"]"`,
		`{"host":"a","port":1,"ready":"b","id":"c"}`, `{"host":1,"port":"x","ready":2,"id":[]}`, "\"\xff\""}
	names := []string{"unknown"}
	if of := reflect.TypeFor[T](); of.Kind() == reflect.Struct {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "null", "[]", `"text"`, "7", "{", `{"unknown":1}x`}).Draw(t, "text")
		if rapid.IntRange(0, 9).Draw(t, "object") > 0 {
			var members []string
			for _, name := range rapid.SliceOf(rapid.SampledFrom(names)).Draw(t, "names") { // some of them twice
				members = append(members, `"`+name+`": `+rapid.SampledFrom(values).Draw(t, "value"))
			}
			text = "{" + strings.Join(members, ",") + "}"
		}
		var want T
		_ = json.Unmarshal([]byte(text), &want)
		if got := decodeData[T](json.RawMessage(text)); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngot  %+v\nwant %+v", text, got, want)
		}
	})
}

// A spec without an order stays as it is, also where a text in it looks like the member. A spec with an order, in
// whichever spelling, loses it.
func TestOrdersAreCutFromASpec(t *testing.T) {
	for _, spec := range []string{`{}`, `null`, `{"a":"\"rotations\":{}","b":{"rotations":{}}}`} {
		rest, orders, err := CutRotations(json.RawMessage(spec))
		if err != nil || len(orders) > 0 || string(rest) != spec {
			t.Errorf("%s: %s, %v, %v", spec, rest, orders, err)
		}
	}
	for _, spec := range []string{`{"a":1,"rotations":{"encryption":{"id":"x"}}}`,
		`{"a":1,"\u0072otations":{"encryption":{"id":"x"}}}`} {
		rest, orders, err := CutRotations(json.RawMessage(spec))
		if err != nil || len(orders) != 1 || strings.Contains(string(rest), "otations") {
			t.Errorf("%s: %s, %v, %v", spec, rest, orders, err)
		}
	}
	for _, spec := range []string{``, `{`, `[]`, `{"a":1}x`} {
		if _, _, err := CutRotations(json.RawMessage(spec)); err == nil {
			t.Errorf("%s is read without an error", spec)
		}
	}
}
