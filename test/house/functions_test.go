package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// longestFunction is the greatest number of lines of a function, its signature and its last brace included.
const longestFunction = 80

// TestFunctionsHaveAtMost80Lines finds longer functions outside tests. testdata/longfunctions has the exceptions, one
// "FILE FUNCTION" a line: tables, which are read row by row. -update removes lines without a function; a new line is
// added by hand, with a reason in review.
func TestFunctionsHaveAtMost80Lines(t *testing.T) {
	exceptions := readExceptions(t, "testdata/longfunctions")
	walkGo(t, func(path string, src []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		fset, file, isOurs := parseOurs(t, path, src)
		if !isOurs {
			return
		}
		for _, d := range file.Decls {
			f, isFunction := d.(*ast.FuncDecl)
			if !isFunction {
				continue
			}
			lines := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1
			if lines > longestFunction && !exceptions.allow(t, path, f.Name.Name) {
				t.Errorf("%s: %s has %d lines, at most %d; split it into functions whose names say what they do",
					fset.Position(f.Pos()), f.Name.Name, lines, longestFunction)
			}
		}
	})
	exceptions.update(t)
}

// parseOurs parses a file. isOurs is false for a generated file, and for one that cannot be parsed.
func parseOurs(t *testing.T, path string, src []byte) (fset *token.FileSet, file *ast.File, isOurs bool) {
	t.Helper()
	fset = token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil, nil, false
	}
	return fset, file, !generated(file) && !strings.HasSuffix(path, "_gen.go") && !strings.HasSuffix(path, ".pb.go")
}

// exceptions is a file of functions that a rule allows, one "FILE FUNCTION" a line.
type exceptions struct {
	list    string
	allowed []string
	used    []string
}

func readExceptions(t *testing.T, list string) *exceptions {
	t.Helper()
	data, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	return &exceptions{list: list, allowed: strings.Split(strings.TrimSpace(string(data)), "\n")}
}

// allow reports whether the function of a file is an exception.
func (e *exceptions) allow(t *testing.T, path, function string) bool {
	t.Helper()
	name, err := filepath.Rel("../..", path)
	if err != nil {
		t.Fatal(err)
	}
	entry := filepath.ToSlash(name) + " " + function
	e.used = append(e.used, entry)
	return slices.Contains(e.allowed, entry)
}

// update removes, with -update, the exceptions that allow was not called for.
func (e *exceptions) update(t *testing.T) {
	t.Helper()
	if !*update {
		return
	}
	kept := slices.DeleteFunc(e.allowed, func(entry string) bool { return !slices.Contains(e.used, entry) })
	if err := os.WriteFile(e.list, []byte(strings.Join(kept, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
