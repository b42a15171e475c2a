package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// TestNoFunctionHasABooleanParameter finds declared functions, function literals and function types with a parameter
// of type bool: a call such as ServerTLS(true) cannot be read without the declaration (decision 80). testdata/booleans
// has the exceptions, one "FILE FUNCTION" a line: conversions of a predicate, literals that check a condition, and
// methods of foreign interfaces. -update removes lines without a function; a new line is added by hand, with a reason
// in review.
func TestNoFunctionHasABooleanParameter(t *testing.T) {
	exceptions := readExceptions(t, "testdata/booleans")
	walkGo(t, func(path string, src []byte) {
		fset, file, isOurs := parseOurs(t, path, src)
		if !isOurs {
			return
		}
		for _, f := range booleanParameters(file) {
			if !exceptions.allow(t, path, f.name) {
				t.Errorf("%s: %s has a parameter of type bool; use two functions or a named type (decision 80)",
					fset.Position(f.at), f.name)
			}
		}
	})
	exceptions.update(t)
}

// function is a function with a parameter of type bool.
type function struct {
	name string // "literal" for a function literal
	at   token.Pos
}

// booleanParameters returns the functions of a file that have a parameter of type bool.
func booleanParameters(file *ast.File) (all []function) {
	add := func(name string, t *ast.FuncType) {
		for _, p := range t.Params.List {
			if isBool(p.Type) {
				all = append(all, function{name, t.Pos()})
				return
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name.Name, n.Type)
		case *ast.FuncLit:
			add("literal", n.Type)
		case *ast.Field:
			if t, ok := n.Type.(*ast.FuncType); ok && len(n.Names) > 0 {
				add(n.Names[0].Name, t)
			}
		case *ast.TypeSpec:
			if t, ok := n.Type.(*ast.FuncType); ok {
				add(n.Name.Name, t)
			}
		}
		return true
	})
	return all
}

// isBool reports whether a parameter's type is bool or ...bool.
func isBool(t ast.Expr) bool {
	if e, ok := t.(*ast.Ellipsis); ok {
		t = e.Elt
	}
	id, ok := t.(*ast.Ident)
	return ok && id.Name == "bool"
}

func TestBooleanParametersAreFound(t *testing.T) {
	const src = `package p
type t struct{ f func(a, b bool) }
type i interface{ m(bool) bool }
type g func(...bool)
func predicate(n int) bool { return n > 0 }
func declared(x int, y bool) { _ = func(z bool) {} }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range booleanParameters(file) {
		names = append(names, f.name)
	}
	if got, want := fmt.Sprint(names), "[f m g declared literal]"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}
