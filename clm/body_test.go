package clm

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
)

// Bodies are decoded as by rest.DecodeJSON: into equal values, with equal errors.
func TestBodiesAreDecodedAsByEncodingJSON(t *testing.T) {
	names := []string{"adapter", "Adapter", "observed_generation", "OBSERVED_GENERATION", "observed_time", "conditions",
		"data", "metadata", "kind", "Kind", "name", "labels", "spec", "references", "type", "status", "reason", "message",
		"Reason", "other", "observed-time", ""}
	scalars := []string{`null`, `true`, `1`, `1.5`, `1e2`, `12345678901`, `"x"`, `"True"`,
		`"2026-01-02T03:04:05.1234567Z"`, `"2026-01-02T03:04:05,5Z"`, `"2026-01-02t3:04:05Z"`, `""`,
		`"\u00e9\ud83d\ude00"`, `"\ud800"`, `"\u0000"`, "\"\xff\"",
		`[`, `{}`, `[]`, ` { "a" : 1 } `}
	var value *rapid.Generator[string]
	inner := rapid.Deferred(func() *rapid.Generator[string] { return value })
	value = rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 5).Draw(t, "form") {
		case 0:
			return "[" + strings.Join(rapid.SliceOfN(inner, 0, 3).Draw(t, "elements"), ", ") + "]"
		case 1, 2:
			members := rapid.SliceOfN(inner, 0, 4).Draw(t, "members")
			for i := range members {
				name, _ := json.Marshal(rapid.SampledFrom(names).Draw(t, "name"))
				members[i] = string(name) + ":" + members[i]
			}
			return "{" + strings.Join(members, ",") + "}"
		}
		return rapid.SampledFrom(scalars).Draw(t, "scalar")
	})
	valid := map[string]string{"adapter": `"dns"`, "observed_generation": `7`, "data": `{"a" : [1 , 2]}`,
		"observed_time": `"2026-01-02T03:04:05.1234567Z"`, "kind": `"Cluster"`, "name": `"n"`, "labels": `{"a":"b"}`,
		"spec": `{"x":{"y":[1,{}]}}`, "conditions": `[{"type":"Available","status":"True","reason":null},{"type":"Health"}]`}
	decodedFast := 0
	rapid.Check(t, func(rt *rapid.T) {
		var members []string
		for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 0, 6).Draw(rt, "names") {
			member, isValid := valid[name]
			if !isValid || rapid.IntRange(0, 4).Draw(rt, "valid") == 0 {
				member = value.Draw(rt, "value")
			}
			members = append(members, fmt.Sprintf("%q:%s", name, member))
		}
		text := []byte("{" + strings.Join(members, ",") + "}")
		if rapid.IntRange(0, 9).Draw(rt, "whole") == 0 {
			text = []byte(value.Draw(rt, "text"))
		}
		checkBody[api.AdapterStatusCreate](rt, text)
		checkBody[api.ResourceCreate](rt, text)
		if checkBody[map[string]json.RawMessage](rt, text) {
			decodedFast++
		}
	})
	if decodedFast == 0 {
		t.Error("no text was valid")
	}
}

// checkBody compares decodeBody with rest.DecodeJSON, and reports whether the text is valid.
func checkBody[T any](t *rapid.T, text []byte) bool {
	var want T
	wantErr := rest.DecodeJSON(text, &want)
	got, err := decodeBody[T](text)
	if !reflect.DeepEqual(messageOf(err), messageOf(wantErr)) {
		t.Fatalf("%s: the error %v, want %v", text, err, wantErr)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: %#v, want %#v", text, got, want)
	}
	return err == nil
}

func messageOf(err error) any {
	if e, ok := errors.AsType[*rest.Error](err); ok {
		return []any{e.Status, e.Code, e.Reason}
	}
	return err
}
