package strictyaml

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

type endpoint struct {
	Host string
	Port int
}

// Level is a named type of a setting.
type Level string

type config struct {
	Server struct {
		endpoint `yaml:",inline"`
		Timeout  time.Duration `yaml:"read_timeout"`
		On       *bool
	}
	Names []string
	Rules []struct {
		Result string `yaml:"result"`
	}
	Limit   *int
	Skipped string `yaml:"-"`
}

func TestMistakesNameFileAndLineAndTheNearestKey(t *testing.T) {
	for text, want := range map[string]string{
		"server: {prot: 1}":             "f.yaml:1: unknown key prot; the nearest known key is port",
		"server:\n  read_timout: 1s":    "f.yaml:2: unknown key read_timout; the nearest known key is read_timeout",
		"rules:\n- {reslut: x}":         "f.yaml:2: unknown key reslut; the nearest known key is result",
		"zebra: 1":                      "f.yaml:1: unknown key zebra",
		"skipped: x":                    "f.yaml:1: unknown key skipped",
		"old: 1":                        "f.yaml:1: unknown key old; write names",
		"server: {port: eighty}":        "f.yaml:1: `eighty` is not a number",
		"server: {host: [1]}":           "f.yaml:1: a list is not a string",
		"server:\n  read_timeout: soon": "f.yaml:2: `soon` is not a duration such as 5s",
		"names: x":                      "f.yaml:1: `x` is not a list of strings",
		"names: []\nnames: []":          `f.yaml:2: mapping key "names" already defined at line 1`,
		"names: []\n---\nnames: []":     "f.yaml:2: the file has more than one document",
		"rules: x":                      "f.yaml:1: `x` is not a list",
		"rules:\n- x":                   "f.yaml:2: `x` is not a mapping",
		"server: []":                    "f.yaml:1: a list is not a mapping",
		"limit: []":                     "f.yaml:1: a list is not a number",
		"{":                             "f.yaml:1: this is not YAML: did not find expected node content",
		"zebra: 1\nserver: {port: x}":   "f.yaml:1: unknown key zebra\nf.yaml:2: `x` is not a number",
		"server: {port: 1, on: true}\nlimit: 2\n": "",
		"": "",
	} {
		var c config
		err := Decode("f.yaml", []byte(text), &c, Options{Hints: map[string]string{"old": "write names"}})
		if got := errorText(err); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	var c config
	if got := errorText(Decode("", []byte("a: 1"), &c, Options{})); got != "line 1: unknown key a" {
		t.Errorf("without a file: %q", got)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestSetParsesATextAsTheTypeOfTheSetting(t *testing.T) {
	var c config
	for _, s := range []struct {
		into any
		text string
	}{{&c.Server.Host, "h"}, {&c.Server.Port, "8"}, {&c.Server.Timeout, "5s"}, {&c.Server.On, "true"}, {&c.Names, "a,b"},
		{&c.Limit, "3"}} {
		if err := Set(s.into, s.text); err != nil {
			t.Error(err)
		}
	}
	var rate float64
	var level Level
	if err := errors.Join(Set(&rate, "2.5"), Set(&level, "debug")); err != nil || rate != 2.5 || level != "debug" {
		t.Errorf("%v %v: %v", rate, level, err)
	}
	if c.Server.Host != "h" || c.Server.Port != 8 || c.Server.Timeout != 5*time.Second || !*c.Server.On ||
		strings.Join(c.Names, " ") != "a b" || *c.Limit != 3 {
		t.Errorf("%+v", c)
	}
	for _, into := range []any{&c.Server.Port, &c.Server.Timeout, &c.Server.On, &c.Limit} {
		if err := Set(into, "x"); err == nil || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%T: %v", into, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("server: {port: 1}"))
	f.Add([]byte("names: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c config
		_ = Decode("f", data, &c, Options{})
	})
}

func TestEachDocumentIsDecoded(t *testing.T) {
	type document struct {
		Name string `yaml:"name"`
		Spec Object `yaml:"spec"`
	}
	got, err := DecodeAll[document]("f.yaml", []byte(`# a comment
---
name: a
spec: {at: 2027-01-02, 1: {yes: "2", n: 3}, list: [2027-01-02T03:04:05Z, null, 1.5, true]}
---
# nothing
---
name: b
`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	want := `[{"Name":"a","Spec":{"1":{"n":3,"yes":"2"},"at":"2027-01-02",` +
		`"list":["2027-01-02T03:04:05Z",null,1.5,true]}},{"Name":"b","Spec":null}]`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	for text, want := range map[string]string{
		"name: a\n---\nnmae: b\n---\nspec: 1\n": "f.yaml:3: unknown key nmae; the nearest known key is name\n" +
			"f.yaml:5: `1` is not a mapping",
		"name: a\n---\n{":    "f.yaml:3: this is not YAML: did not find expected node content",
		"spec: {a: .nan}":    "f.yaml:1: this cannot be JSON: json: unsupported value: NaN",
		"spec: {a: 1, a: 2}": `f.yaml:1: mapping key "a" already defined at line 1`,
	} {
		if _, err := DecodeAll[document]("f.yaml", []byte(text), Options{}); errorText(err) != want {
			t.Errorf("%q: %q, want %q", text, errorText(err), want)
		}
	}
}
