package house

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// longest is the greatest length of a line of Go, in characters; a tab is one of them.
const longest = 120

// TestGoLinesHaveAtMost120Columns counts the longer lines of each file. testdata/longlines allows
// those that existed when the rule began, most of them within raw texts. A file may have fewer: then
// -update lowers its number. No number ever grows.
func TestGoLinesHaveAtMost120Columns(t *testing.T) {
	const list = "testdata/longlines"
	allowed := map[string]int{}
	data, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var file string
		var n int
		if _, err := fmt.Sscan(line, &n, &file); err != nil {
			t.Fatalf("%s: %q: %v", list, line, err)
		}
		allowed[file] = n
	}
	remaining := map[string]int{}
	walkGo(t, func(path string, src []byte) {
		name, err := filepath.Rel("../..", path)
		if err != nil {
			t.Fatal(err)
		}
		name = filepath.ToSlash(name)
		if strings.HasSuffix(name, "_gen.go") || strings.HasSuffix(name, ".pb.go") {
			return
		}
		var long []int
		for i, line := range strings.Split(string(src), "\n") {
			if utf8.RuneCountInString(line) > longest {
				long = append(long, i+1)
			}
		}
		if len(long) > allowed[name] {
			t.Errorf("%s: lines %v are longer than %d characters, %d allowed", name, long, longest, allowed[name])
		}
		if n := min(len(long), allowed[name]); n > 0 {
			remaining[name] = n
		}
	})
	if !*update {
		return
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(remaining)) {
		fmt.Fprintln(&b, remaining[name], name)
	}
	if err := os.WriteFile(list, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
