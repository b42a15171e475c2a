package search

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// kind is the kind of a token.
type kind int

const (
	endToken    kind = iota
	wordToken        // a name or a keyword
	quotedToken      // a name in quotes: never a keyword
	stringToken      // a string; its text has no quotes and escapes
	numberToken      // with its suffix
	timeToken        // a date or a time
	signToken        // an operator or a bracket
)

// token is one token. text is its meaning, without quotes and escapes.
type token struct {
	kind kind
	text string
	pos  int // where it begins
	end  int // where it ends
}

// signs in the order in which they are tried: longer ones first.
var signs = []string{"->>", "->", "@>", "<>", "<=", ">=", "!=", "~=", "~!", "==", "=", "<", ">", "(", ")", "[", "]",
	",", ".", "+", "-", "*", "/", "%"}

// scanner splits a text into tokens, on demand, because the meaning of a bare
// word depends on its place.
type scanner struct {
	text  string
	paths bool // the language with JSON paths
	pos   int
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isStart(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }

func (s *scanner) skipSpace() {
	for s.pos < len(s.text) && isSpace(s.text[s.pos]) {
		s.pos++
	}
}

// next scans one token. On a fault it returns the message for it.
func (s *scanner) next() (t token, fault string) {
	s.skipSpace()
	t = token{pos: s.pos}
	if s.pos == len(s.text) {
		t.end = s.pos
		return t, ""
	}
	switch c := s.text[s.pos]; {
	case c == '\'':
		t.kind = stringToken
		t.text, fault = s.quoted('\'')
	case c == '"' || c == '`':
		t.kind = quotedToken
		t.text, fault = s.quoted(c)
	case isStart(c):
		t.kind = wordToken
		s.pos++
		for s.pos < len(s.text) && (isStart(s.text[s.pos]) || isDigit(s.text[s.pos])) {
			s.pos++
		}
		t.text = s.text[t.pos:s.pos]
	case isDigit(c) || c == '.' && s.pos+1 < len(s.text) && isDigit(s.text[s.pos+1]):
		t.kind, fault = s.number()
		t.text = s.text[t.pos:s.pos]
	default:
		t.kind = signToken
		for _, sign := range signs {
			if strings.HasPrefix(s.text[s.pos:], sign) {
				t.text = sign
				s.pos += len(sign)
				break
			}
		}
		if t.text == "" {
			r, _ := utf8.DecodeRuneInString(s.text[s.pos:])
			fault = "the character " + string(r) + " has no meaning here"
		}
	}
	t.end = s.pos
	return t, fault
}

// quoted scans a text in quotes and returns it, or a fault. Two quotes in it
// stand for one; so does a backslash with a single quote in the language with
// JSON paths.
func (s *scanner) quoted(quote byte) (string, string) {
	var b strings.Builder
	for s.pos++; s.pos < len(s.text); s.pos++ {
		c := s.text[s.pos]
		follows := func(c byte) bool { return s.pos+1 < len(s.text) && s.text[s.pos+1] == c }
		switch {
		case c == quote && follows(quote), c == '\\' && s.paths && quote == '\'' && follows(quote):
			b.WriteByte(quote)
			s.pos++
		case c == quote:
			s.pos++
			return b.String(), ""
		default:
			b.WriteByte(c)
		}
	}
	return "", "a quote that does not end"
}

var (
	timePattern   = regexp.MustCompile(`^\d{4}-\d\d-\d\d(?:[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)?)?`)
	numberPattern = regexp.MustCompile(`^(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?:[kKmMgGtTpP][iI]?)?`)
)

// number scans a number, a date, or a time.
func (s *scanner) number() (kind, string) {
	kind := timeToken
	found := timePattern.FindString(s.text[s.pos:])
	if found == "" {
		kind, found = numberToken, numberPattern.FindString(s.text[s.pos:])
	}
	s.pos += len(found)
	if s.pos < len(s.text) && (isStart(s.text[s.pos]) || isDigit(s.text[s.pos])) {
		return kind, "neither a number nor a time"
	}
	return kind, ""
}

// bare scans a value without quotes, in the language with JSON paths: the text
// up to a space, a quote, a parenthesis or a comma.
func (s *scanner) bare() token {
	s.skipSpace()
	t := token{kind: stringToken, pos: s.pos}
	for s.pos < len(s.text) && !isSpace(s.text[s.pos]) && !strings.ContainsRune("'(),", rune(s.text[s.pos])) {
		s.pos++
	}
	t.text, t.end = s.text[t.pos:s.pos], s.pos
	return t
}
