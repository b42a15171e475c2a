package search

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// tokenKind is the kind of a token.
type tokenKind int

const (
	endToken    tokenKind = iota
	wordToken             // a name or a keyword
	quotedToken           // a name in quotes: never a keyword
	stringToken           // a string; its text has no quotes and escapes
	numberToken           // with its suffix
	timeToken             // a date or a time
	signToken             // an operator or a bracket
)

// token is one token of the search text.
type token struct {
	kind tokenKind
	text string // without quotes and escapes
	pos  int    // the byte offset of its first byte
	end  int    // the byte offset after its last byte
}

// signs are the operators and brackets. A sign stands before the shorter signs with which it
// begins.
var signs = []string{"->>", "->", "@>", "<>", "<=", ">=", "!=", "~=", "~!", "==", "=", "<", ">", "(", ")", "[", "]",
	",", ".", "+", "-", "*", "/", "%"}

// scanner splits a text into tokens. The parser requests one token at a time, because only the
// parser knows where a value without quotes can stand (scanBare).
type scanner struct {
	text      string
	jsonPaths bool // the language with JSON paths
	pos       int
}

func isSpace(c byte) bool  { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }

func (s *scanner) skipSpace() {
	for s.pos < len(s.text) && isSpace(s.text[s.pos]) {
		s.pos++
	}
}

// scan returns the next token; at the end of the text an endToken. For a malformed token, fault is
// the error message.
func (s *scanner) scan() (t token, fault string) {
	s.skipSpace()
	t = token{pos: s.pos}
	if s.pos == len(s.text) {
		t.end = s.pos
		return t, ""
	}
	switch c := s.text[s.pos]; {
	case c == '\'':
		t.kind = stringToken
		t.text, fault = s.scanQuoted('\'')
	case c == '"' || c == '`':
		t.kind = quotedToken
		t.text, fault = s.scanQuoted(c)
	case isLetter(c):
		t.kind = wordToken
		s.pos++
		for s.pos < len(s.text) && (isLetter(s.text[s.pos]) || isDigit(s.text[s.pos])) {
			s.pos++
		}
		t.text = s.text[t.pos:s.pos]
	case isDigit(c) || c == '.' && s.pos+1 < len(s.text) && isDigit(s.text[s.pos+1]):
		t.kind, fault = s.scanNumber()
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

// scanQuoted scans a text in quotes and returns it without them; without a closing quote, fault is
// the error message. Two quotes in the text stand for one, and in the language with JSON paths so
// does a backslash with a single quote.
func (s *scanner) scanQuoted(quote byte) (text, fault string) {
	var b strings.Builder
	for s.pos++; s.pos < len(s.text); s.pos++ {
		c := s.text[s.pos]
		precedes := func(c byte) bool { return s.pos+1 < len(s.text) && s.text[s.pos+1] == c }
		switch {
		case c == quote && precedes(quote), c == '\\' && s.jsonPaths && quote == '\'' && precedes(quote):
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

// scanNumber scans a number, a date, or a time. For a malformed one, fault is the error message.
func (s *scanner) scanNumber() (kind tokenKind, fault string) {
	kind = timeToken
	found := timePattern.FindString(s.text[s.pos:])
	if found == "" {
		kind, found = numberToken, numberPattern.FindString(s.text[s.pos:])
	}
	s.pos += len(found)
	if s.pos < len(s.text) && (isLetter(s.text[s.pos]) || isDigit(s.text[s.pos])) {
		return kind, "neither a number nor a time"
	}
	return kind, ""
}

// scanBare scans a value without quotes, in the language with JSON paths: the text up to a space, a
// quote, a parenthesis or a comma.
func (s *scanner) scanBare() token {
	s.skipSpace()
	t := token{kind: stringToken, pos: s.pos}
	for s.pos < len(s.text) && !isSpace(s.text[s.pos]) && !strings.ContainsRune("'(),", rune(s.text[s.pos])) {
		s.pos++
	}
	t.text, t.end = s.text[t.pos:s.pos], s.pos
	return t
}
