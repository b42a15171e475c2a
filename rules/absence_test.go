package rules

import (
	"errors"
	"testing"
)

// The words by which isAbsence knows absence are those of the cel-go in use.
func TestIsAbsenceRecognizesErrorsOfCEL(t *testing.T) {
	env, err := NewEnv(Options{Variables: map[string]Type{"a": Map, "n": Any, "l": List}})
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]any{"a": map[string]any{"x": nil, "s": "text"}, "n": nil, "l": []any{int64(1)}}
	for text, absent := range map[string]bool{
		"a.b": true, "a.b.c": true, "a.x.y": true, "n.y": true, `n["y"]`: true, "l[3]": true, "l[0].k": true,
		"a.s.k": true, "nobody": true, "has(nobody.x)": true, "a.b + 1": true, "l.filter(x, x > 2)[0]": true,
		"optional.none().value()": true,
		"1 / 0":                   false, `int("")`: false, `timestamp("")`: false, `a.x + "b"`: false, "a.x.size()": false,
		"n.map(c, c)": false,
	} {
		program, _, err := env.CompileLoose(text)
		if err != nil {
			t.Fatal(text, err)
		}
		if _, err = program.Eval(t.Context(), vars); err == nil || errors.Is(err, ErrAbsent) != absent {
			t.Errorf("%s: %v, absent %v", text, err, absent)
		}
	}
}
