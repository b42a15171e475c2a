package work

import (
	"bytes"
	"slices"

	"atoll.dev/internal/jsonscan"
)

// LastApplied is the annotation in which kubectl keeps a copy of the whole object.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// MayHaveSecret reports whether a JSON document can have a Secret or the status of one: it has a
// text that begins with "secret", in whatever case, or a letter that is written as an escape. It
// is cheaper than decoding the document.
func MayHaveSecret(doc []byte) bool {
	const quoted, escape = `"secret`, `\u00`
	for rest := doc; ; rest = rest[1:] {
		i := bytes.IndexByte(rest, '"')
		if i < 0 || len(rest)-i < len(quoted) {
			break
		}
		rest = rest[i:]
		if bytes.EqualFold(rest[:len(quoted)], []byte(quoted)) {
			return true
		}
	}
	for rest := doc; ; {
		i := bytes.Index(rest, []byte(escape))
		if i < 0 || i+len(escape) == len(rest) {
			return false
		}
		rest = rest[i+len(escape):]
		if rest[0] >= '4' && rest[0] <= '7' { // ASCII letters are 0041 to 007a
			return true
		}
	}
}

// SecretSpans returns where in a JSON document the contents of the Secrets that EachSecret finds lie: their members
// data and stringData, and the copy of kubectl. A span is the half-open range of the bytes of one JSON value that is
// not null. Spans are in the order of the document and do not overlap.
func SecretSpans(doc []byte) [][2]int {
	if !MayHaveSecret(doc) {
		return nil
	}
	f := spanFinder{scan: jsonscan.New(doc)}
	f.value()
	slices.SortFunc(f.spans, func(a, b [2]int) int { return a[0] - b[0] })
	var outer [][2]int
	for _, s := range f.spans {
		if n := len(outer); n == 0 || s[0] >= outer[n-1][1] { // not in a Secret's data that was found already
			outer = append(outer, s)
		}
	}
	return outer
}

// spanFinder collects the spans of Secrets.
type spanFinder struct {
	scan  *jsonscan.Scanner
	spans [][2]int
}

// value reads any value.
func (f *spanFinder) value() {
	switch f.scan.Next() {
	case '{':
		f.object()
	case '[':
		f.scan.Array(f.value)
	default:
		f.scan.Skip()
	}
}

// object reads an object, which may be a Secret or a list of Secrets, and returns where its content would lie if it
// were a Secret. Of members with one name the last counts for what it is, as in PostgreSQL.
func (f *spanFinder) object() (content [][2]int) {
	var kind, version string
	var listed [][2]int // the content of its items
	f.scan.Object(func(key string) {
		switch isText := f.scan.Next() == '"'; {
		case key == "kind" && isText:
			kind = f.scan.String()
		case key == "apiVersion" && isText:
			version = f.scan.String()
		case key == "data" || key == "stringData":
			content = append(content, f.span()...)
		case key == "items" && f.scan.Next() == '[':
			f.scan.Array(func() {
				if f.scan.Next() == '{' {
					listed = append(listed, f.object()...)
				} else {
					f.value()
				}
			})
		case key == "metadata" && f.scan.Next() == '{':
			f.scan.Object(func(key string) {
				if key != "annotations" || f.scan.Next() != '{' {
					f.value()
					return
				}
				f.scan.Object(func(key string) {
					if span := f.span(); key == LastApplied {
						content = append(content, span...)
					}
				})
			})
		default:
			f.value()
		}
	})
	switch {
	case isKind(kind, version, secretKind):
		f.spans = append(f.spans, content...)
	case isKind(kind, version, secretListKind):
		f.spans = append(f.spans, listed...)
	}
	return content
}

// span reads any value and returns its span; none for null.
func (f *spanFinder) span() [][2]int {
	begin, isNull := f.scan.Offset(), f.scan.Next() == 'n'
	f.value()
	if isNull {
		return nil
	}
	return [][2]int{{begin, f.scan.Position()}}
}
