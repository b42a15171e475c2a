package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryCompatibilityRowNamesATest reads docs/compatibility.md: each row of
// its tables has five cells, and the last one names tests that exist.
func TestEveryCompatibilityRowNamesATest(t *testing.T) {
	const file = "../../docs/compatibility.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([A-Za-z0-9_/]+)\\.((?:Test|Fuzz|Example)[A-Za-z0-9_]*)`")
	rows := 0
	for i, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| point |") {
			continue
		}
		rows++
		cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, " "), "|")
		if len(cells) != 5 {
			t.Errorf("%s:%d: %d cells, not 5 (write a bar inside a cell as \\|)", file, i+1, len(cells))
			continue
		}
		tests := name.FindAllStringSubmatch(cells[4], -1)
		if len(tests) == 0 {
			t.Errorf("%s:%d: the last cell names no test as `package/path.TestName`: %s", file, i+1, cells[4])
		}
		for _, test := range tests {
			if !hasTest(t, filepath.Join("../..", test[1]), test[2]) {
				t.Errorf("%s:%d: there is no %s in %s", file, i+1, test[2], test[1])
			}
		}
	}
	if rows == 0 {
		t.Errorf("%s has no rows", file)
	}
}

// hasTest reports whether a test file of the folder declares the function.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return true
			}
		}
	}
	return false
}
