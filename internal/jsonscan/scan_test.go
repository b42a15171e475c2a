package jsonscan

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// A Scanner reads the same values as encoding/json.
func TestAScannerReadsWhatEncodingJSONReads(t *testing.T) {
	text := `{"a": "x\"\u00e9\n", "n": -12, "t": "2026-01-02T03:04:05.000006Z", "l": [1, {"b": [true, null, "]"]}, ` +
		`"}"], "e": {}, "z": [], "s": "<é>"}`
	type want struct {
		A string          `json:"a"`
		N int64           `json:"n"`
		T time.Time       `json:"t"`
		L json.RawMessage `json:"l"`
		S string          `json:"s"`
	}
	var w, got want
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	s := New([]byte(text))
	s.Object(func(key string) {
		switch key {
		case "a":
			got.A = s.String()
		case "n":
			got.N = s.Int()
		case "t":
			got.T = s.Time()
		case "l":
			got.L = s.Raw()
		case "s":
			got.S = s.String()
		default:
			s.Skip()
		}
	})
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if got.A != w.A || got.N != w.N || !got.T.Equal(w.T) || string(got.L) != string(w.L) || got.S != w.S {
		t.Errorf("got %+v, want %+v", got, w)
	}
}

func TestAppendedValuesAreJSON(t *testing.T) {
	for _, v := range []string{"", "plain", "a\"b\\c", "é\x01\n", "<&>"} {
		var back string
		if err := json.Unmarshal(AppendString(nil, v), &back); err != nil || back != v {
			t.Errorf("%q came back as %q (%v)", v, back, err)
		}
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	if want, _ := json.Marshal(at); string(AppendTime(nil, at)) != string(want) {
		t.Errorf("%s, not %s", AppendTime(nil, at), want)
	}
}

// No input causes a panic or an endless loop.
func FuzzAnyInputEnds(f *testing.F) {
	for _, seed := range []string{`{"a":[1,{"b":"c"}]}`, `[`, `{"a"`, `"\`, `}`, `,`, `[1,,2]`, `{"a":}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		New(data).Raw()
		s := New(data)
		s.Object(func(string) { s.Array(func() { s.Skip() }) })
		valid := New(data)
		valid.Skip()
		if json.Valid(data) && valid.End() != nil {
			t.Errorf("%q is valid JSON, and was refused: %v", data, valid.Err())
		}
	})
}

func TestValuesEqualThoseOfEncodingJSON(t *testing.T) {
	text := `{"a": "x\"\u00e9\n", "n": -12.5e3, "l": [1, {"b": [true, null, "]"]}, false], "e": {}, "z": [], "s": "<é>"}`
	var want any
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	s := New([]byte(text))
	if got := s.Value(); s.End() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v, %v", got, want, s.Err())
	}
	for cut := range len(text) {
		s := New([]byte(text[:cut]))
		if s.Value(); s.End() == nil {
			t.Errorf("%s is read without an error", text[:cut])
		}
	}
}
