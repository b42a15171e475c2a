package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// TestDocCommentsBeginWithTheName finds comments of functions, methods and types that do not begin with their name,
// which is how a comment looks that was left behind when its function was renamed. An article before the name is fine.
// Comments of tests, benchmarks, examples and init say what happens.
func TestDocCommentsBeginWithTheName(t *testing.T) {
	walkGo(t, func(path string, src []byte) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		if generated(file) {
			return
		}
		for name, doc := range documented(file) {
			if begins := firstWord(doc.Text()); begins != "" && begins != name.Name {
				t.Errorf("%s: the comment of %s begins with %q; begin it with the name", fset.Position(doc.Pos()), name.Name,
					begins)
			}
		}
	})
}

var describesATest = regexp.MustCompile(`^(Test|Benchmark|Fuzz|Example)|^(init|main)$`)

// documented returns the names of a file's functions, methods and types that have a comment.
func documented(file *ast.File) map[*ast.Ident]*ast.CommentGroup {
	all := map[*ast.Ident]*ast.CommentGroup{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc != nil && !describesATest.MatchString(d.Name.Name) {
				all[d.Name] = d.Doc
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				s, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if s.Doc != nil {
					all[s.Name] = s.Doc
				} else if d.Doc != nil && len(d.Specs) == 1 {
					all[s.Name] = d.Doc
				}
			}
		}
	}
	return all
}

// firstWord returns the first word of a comment that is no article, without a genitive and punctuation; "" for a
// comment that has only directives.
func firstWord(text string) string {
	for word := range strings.FieldsSeq(text) {
		if word != "A" && word != "An" && word != "The" {
			return strings.TrimSuffix(strings.TrimRight(word, ",.:;()"), "'s")
		}
	}
	return ""
}
