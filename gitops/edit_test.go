package gitops

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestEditsSetValuesAndCanBeUndone(t *testing.T) {
	for name, c := range map[string]struct{ before, path, want string }{
		"a new key in an empty file": {"", "versions.atoll", "versions:\n  atoll: NEW\n"},
		"a key beside others": {"# kept\nsector: main # kept too\n", "versions.atoll",
			"# kept\nsector: main # kept too\nversions:\n  atoll: NEW\n"},
		"a value with a comment": {"versions:\n  atoll: old # why\n", "versions.atoll",
			"versions:\n  atoll: NEW # why\n"},
		"a value that is like a key": {"a: b\nb: old\n", "b", "a: b\nb: NEW\n"},
		"a flow mapping":             {"versions: {atoll: old}\n", "versions.atoll", "versions: {atoll: NEW}\n"},
		"a mapping that was deleted": {"versions: null\n", "versions.atoll", "versions:\n  atoll: NEW\n"},
		"a cluster without settings": {"managementClusters:\n  mc01:\n", "managementClusters.mc01.a",
			"managementClusters:\n  mc01:\n    a: NEW\n"},
		"a value that replaces a map": {"values:\n  a: {b: 1}\n", "values.a", "values:\n  a: NEW\n"},
	} {
		after, undo, err := EditFile("r.yaml", []byte(c.before), []Edit{{Path: strings.Split(c.path, "."), Value: "NEW"}})
		if err != nil || string(after) != c.want {
			t.Errorf("%s: got %q (%v), want %q", name, after, err, c.want)
			continue
		}
		undone, _, err := EditFile("r.yaml", after, undo)
		if err != nil || !sameYAML(t, undone, []byte(c.before)) {
			t.Errorf("%s: undone it is %q (%v)", name, undone, err)
		}
	}
}

// sameYAML reports whether two files have the same values.
func sameYAML(t *testing.T, a, b []byte) bool {
	t.Helper()
	x, err := parse("a", a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := parse("b", b)
	if err != nil {
		t.Fatal(err)
	}
	return x.equals(y)
}

// TestUndoneEditsAreExactAndKeepTheEditsOfOthers sends the undo through JSON, as the record of a rollout does.
func TestUndoneEditsAreExactAndKeepTheEditsOfOthers(t *testing.T) {
	for name, c := range map[string]struct{ before, path, other, added, want string }{
		"a large number": {before: "a: 17179869184\n", path: "a", want: "a: 17179869184\n"},
		"a date":         {before: "a: 2026-11-20 # day\n", path: "a", want: "a: 2026-11-20 # day\n"},
		"a small float":  {before: "a: 1e-05\n", path: "a", want: "a: 1e-05\n"},
		"a list":         {before: "a: [1, \"2\", 2026-11-20]\n", path: "a", want: "a: [1, \"2\", 2026-11-20]\n"},
		"an alias": {before: "b: &x {c: 0x10}\na: *x\n", path: "a",
			want: "b: &x {c: 0x10}\na: {c: 0x10}\n"},
		"a key beside a new one": {before: "", path: "versions.atoll", other: "versions.images.clm", added: "x",
			want: "versions:\n  images:\n    clm: x\n"},
		"a key between new ones": {before: "", path: "a.b.c", other: "a.d", added: "x", want: "a:\n  d: x\n"},
		"a key in a cluster without settings": {before: "m:\n  mc01:\n", path: "m.mc01.a.b", other: "m.mc01.c", added: "x",
			want: "m:\n  mc01:\n    c: x\n"},
		"a mapping that was empty": {before: "a: {}\n", path: "a.b", want: "a: {}\n"},
	} {
		after, undo, err := EditFile("r.yaml", []byte(c.before), []Edit{{Path: strings.Split(c.path, "."), Value: "NEW"}})
		if err == nil && c.other != "" {
			after, _, err = EditFile("r.yaml", after, []Edit{{Path: strings.Split(c.other, "."), Value: c.added}})
		}
		var record []byte
		if err == nil {
			record, err = json.Marshal(undo)
		}
		undo = nil
		if err == nil {
			err = json.Unmarshal(record, &undo)
		}
		if err == nil {
			after, _, err = EditFile("r.yaml", after, undo)
		}
		if err != nil || string(after) != c.want {
			t.Errorf("%s: undone by %s it is %q (%v), want %q", name, record, after, err, c.want)
		}
	}
}

func TestEditsThatCannotPassAreRefusedWithTheirLine(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nversions: [x]\n":         "r.yaml:2: versions is no mapping",
		"base: &b {x: 1}\nversions: *b": "r.yaml:2: versions is no mapping",
		"a: [\n":                        "r.yaml:1: this is not YAML",
	} {
		_, _, err := EditFile("r.yaml", []byte(text), []Edit{{Path: []string{"versions", "atoll"}, Value: "x"}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestAnEditKeepsMissingValues edits a file whose other values are missing, in braces and in lines.
func TestAnEditKeepsMissingValues(t *testing.T) {
	const file = "managementClusters: {mc01: , mc02: {aws: }, mc03}\nvalues:\n  global:\n"
	after, _, err := EditFile("f.yaml", []byte(file), []Edit{{Path: []string{"versions", "atoll"}, Value: "2"}})
	want := "managementClusters: {mc01: null, mc02: {aws: null}, mc03: null}\n" +
		"values:\n  global:\nversions:\n  atoll: \"2\"\n"
	if err != nil || string(after) != want {
		t.Errorf("the file is\n%s%v, want\n%s", after, err, want)
	}
}
