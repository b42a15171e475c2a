package jsonvalue

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// checkDecoding compares Decode and AppendCanonical with encoding/json.
func checkDecoding(t interface{ Fatalf(string, ...any) }, text []byte) {
	want, wantErr := decodeByLibrary(text)
	got, err := Decode(text)
	if (wantErr == nil) != (err == nil) {
		t.Fatalf("Decode(%q) has the error %v, encoding/json %v", text, err, wantErr)
	}
	d := decoder{data: text}
	if _, ok := d.value(0); ok && d.next() == 0 && d.at == len(text) && wantErr != nil {
		t.Fatalf("the decoder accepts %q, which is malformed: %v", text, wantErr)
	}
	if err != nil {
		if b, err := AppendCanonicalText([]byte("x"), text); err == nil || string(b) != "x" {
			t.Fatalf("AppendCanonicalText(%q) = %q, %v; Decode has the error %v", text, b, err, wantErr)
		}
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("Decode(%q) = %#v, encoding/json %#v", text, got, want)
	}
	encoded, err := json.Marshal(want)
	if err != nil {
		t.Fatalf("encoding %#v: %v", want, err)
	}
	if canonical := AppendCanonical(nil, got); !bytes.Equal(canonical, encoded) {
		t.Fatalf("the canonical form of %q is %s, json.Marshal's is %s", text, canonical, encoded)
	}
	if canonical, err := AppendCanonicalText([]byte("x"), text); err != nil || string(canonical) != "x"+string(encoded) {
		t.Fatalf("the canonical text of %q is %s (%v), json.Marshal's is %s", text, canonical, err, encoded)
	}
}

func TestDecodingEqualsEncodingJSON(t *testing.T) {
	for _, text := range []string{
		``, ` `, `null`, ` true `, `false`, `0`, `-0`, `-1.50E+07`, `9007199254740993`, `01`, `-`, `1.`,
		`1e`, `.5`, `1E-2`, `0.0`, `+1`, `1 2`, "1\x00",
		`{}`, `[]`, `{} x`,
		` { "a" : [ 1 , "b" , { } , [ ] , null ] , "a" : 2 } `, `{"a":1,}`, `[1,]`, `{"a"}`, `"unfinished`, `tru`,
		`"\u00e9\ud83d\ude00\ud800 \/ \"\\"`, "\"\xff\xfe\"", "\"a\nb\"", `"<a href='x'>&amp;"`,
		"\"\u2028\u2029é\"",
		"{\"\xff\":1,\"\xfe\":2}", "\"\x7f\"", `"` + "\\u0000" + `"`, `{"b":1,"a":{"d":[true],"c":null}}`,
		`{"a!":1,"a":2}`, `{"b":{"z":1,"y":2},"a":[{"d":1,"c":2}],"b":3,"aa":""}`, `{"a":1,"a":2,"a":3}`,
		`{"ab":{"a":1,"a":2},"aa":0,"ab":{"c":1}}`, `{"a":{"b":1},"b":"\"","a":2}`,
		strings.Repeat("[", 9999) + strings.Repeat("]", 9999), strings.Repeat("[", 10001) + strings.Repeat("]", 10001),
	} {
		checkDecoding(t, []byte(text))
	}
}

func TestDecodingOfRandomTextsEqualsEncodingJSON(t *testing.T) {
	pieces := []string{`{`, `}`, `[`, `]`, `,`, `:`, ` `, `"a"`, `"b"`, `"\u00e9"`, `"<"`, "\"\xff\"", `1`, `-2.5e3`,
		`true`, `null`, `"`, `\`}
	var value *rapid.Generator[string]
	inner := rapid.Deferred(func() *rapid.Generator[string] { return value })
	value = rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 3).Draw(t, "form") {
		case 0:
			return "[" + strings.Join(rapid.SliceOfN(inner, 0, 3).Draw(t, "elements"), " , ") + "]"
		case 1:
			members := rapid.SliceOfN(inner, 0, 3).Draw(t, "members")
			for i, member := range members {
				name, _ := json.Marshal(rapid.OneOf(rapid.StringN(0, 2, -1),
					rapid.SampledFrom([]string{"", "a", "b", "aa", "a!", "a}"})).Draw(t, "name"))
				members[i] = string(name) + ": " + member
			}
			return "{" + strings.Join(members, ",") + "}"
		case 2:
			return rapid.SampledFrom(pieces[7:16]).Draw(t, "scalar")
		}
		text, _ := json.Marshal(rapid.String().Draw(t, "text"))
		return string(text)
	})
	rapid.Check(t, func(t *rapid.T) {
		checkDecoding(t, []byte(value.Draw(t, "value")))
		checkDecoding(t, []byte(strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "pieces"), "")))
	})
}
