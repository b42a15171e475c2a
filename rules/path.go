package rules

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Path is a compiled JSONPath in the form that Kubernetes gave it
// (https://kubernetes.io/docs/reference/kubectl/jsonpath): one expression,
// with or without braces and the leading $.
//
//	.status.phase   .items[*].name   .items[0]   .items[-1]   .items[0:4:2]   .items[0,2]
//	['metadata','spec']   .metadata.labels.a\.b/c   .metadata.labels["a.b/c"]
//	.status.conditions[?(@.type=="Ready")].status   ..name
//
// Text around braces, {range} and {end} belong to output and are refused. A
// key in double quotes is taken as it is; in single quotes, as kubectl has it,
// unescaped dots go on to separate fields. Unlike kubectl, results of
// wildcards come in the order of their keys, and numbers compare as numbers
// whatever their type.
type Path struct {
	text  string
	nodes []node
}

// maxPath is the longest text of a path in bytes.
const maxPath = 16 << 10

// ParsePath compiles a path.
func ParsePath(text string) (*Path, error) {
	inner := strings.TrimSpace(text)
	if strings.HasPrefix(inner, "{") && strings.HasSuffix(inner, "}") {
		inner = inner[1 : len(inner)-1]
	}
	if len(inner) > maxPath {
		return nil, fmt.Errorf("json path of %d bytes is longer than %d", len(inner), maxPath)
	}
	nodes, err := parseAction(inner)
	if err != nil {
		return nil, err
	}
	return &Path{text, nodes}, nil
}

// String is the path as it was written.
func (p *Path) String() string { return p.text }

// node is one step of a path. find returns the values that the step selects in the given values.
type node interface {
	find(*walker, []any) ([]any, error)
}

type (
	fieldNode    struct{ name string }
	wildcardNode struct{}
	recurseNode  struct{}
	literalNode  struct{ value any } // a number or a boolean, which it returns once for each value that it gets
	textNode     struct{ text string }
	unionNode    struct{ branches [][]node }
	sliceNode    struct {
		start, end, step int
		hasEnd, hasStep  bool
		isIndex          bool // the path has one index instead of a range: end is start+1
	}
	filterNode struct {
		left, right []node
		op          string // "": an item matches when the path left selects a value in it
	}
)

type pathParser struct {
	text string
	pos  int
	out  []node
}

const eof = -1

// parseAction parses the text between braces.
func parseAction(text string) ([]node, error) {
	p := &pathParser{text: text}
	for {
		rest := p.text[p.pos:]
		var err error
		switch r := p.next(); {
		case r == eof:
			return p.out, nil
		case r == '\r' || r == '\n':
			err = errors.New("unclosed action")
		case r == ' ' || r == '@' || r == '$': // the value that the path has reached: no node
		case strings.HasPrefix(rest, "[?("):
			p.pos += len("?(")
			err = p.parseFilter()
		case r == '[':
			err = p.parseBrackets()
		case r == '"' || r == '\'':
			err = p.parseQuoted(byte(r))
		case strings.HasPrefix(rest, ".."):
			p.pos++
			err = p.parseRecursion()
		case r == '.':
			p.parseField()
		case r == '+' || r == '-' || unicode.IsDigit(r):
			p.unread(r)
			err = p.parseNumber()
		case isWord(r):
			p.unread(r)
			err = p.parseWord()
		default:
			err = fmt.Errorf("unrecognized character in action: %#U", r)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *pathParser) add(n node) { p.out = append(p.out, n) }

func (p *pathParser) next() rune {
	if p.pos >= len(p.text) {
		return eof
	}
	r, n := utf8.DecodeRuneInString(p.text[p.pos:])
	p.pos += n
	return r
}

func (p *pathParser) unread(r rune) {
	if r == utf8.RuneError { // possibly one bad byte
		_, n := utf8.DecodeLastRuneInString(p.text[:p.pos])
		p.pos -= n
		return
	}
	p.pos -= utf8.RuneLen(r)
}

func (p *pathParser) peek() rune {
	r, n := utf8.DecodeRuneInString(p.text[p.pos:])
	if n == 0 {
		return eof
	}
	return r
}

// isWord reports whether a character may be in a word such as true.
func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// endsName reports whether a character, or the end of the text, ends a name.
func endsName(r rune) bool { return r == eof || strings.ContainsRune(" \t\r\n.,[]$@{}", r) }

// parseField reads the name of a field, or *. After a backslash, the next character
// belongs to the name.
func (p *pathParser) parseField() {
	start := p.pos
	for !endsName(p.peek()) {
		if p.next() == '\\' {
			p.next()
		}
	}
	if name := p.text[start:p.pos]; name == "*" {
		p.add(wildcardNode{})
	} else {
		p.add(fieldNode{strings.ReplaceAll(name, `\`, "")})
	}
}

// parseRecursion reads the second dot of "..", and the name after it.
func (p *pathParser) parseRecursion() error {
	if len(p.out) > 0 {
		if _, twice := p.out[len(p.out)-1].(recurseNode); twice {
			return errors.New("invalid multiple recursive descent")
		}
	}
	p.add(recurseNode{})
	if isWord(p.peek()) {
		p.parseField()
	}
	return nil
}

// parseWord reads true or false.
func (p *pathParser) parseWord() error {
	start := p.pos
	for !endsName(p.peek()) {
		p.next()
	}
	switch word := p.text[start:p.pos]; word {
	case "true", "false":
		p.add(literalNode{word == "true"})
	default:
		return fmt.Errorf("unrecognized identifier %s", word)
	}
	return nil
}

func (p *pathParser) parseNumber() error {
	start := p.pos
	p.next()
	for r := p.peek(); r == '.' || unicode.IsDigit(r); r = p.peek() {
		p.next()
	}
	text := p.text[start:p.pos]
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		p.add(literalNode{i})
	} else if f, err := strconv.ParseFloat(text, 64); err == nil {
		p.add(literalNode{f})
	} else {
		return fmt.Errorf("cannot parse number %s", text)
	}
	return nil
}

// parseQuoted reads a string up to its closing quote.
func (p *pathParser) parseQuoted(quote byte) error {
	end := closingQuote(p.text[p.pos:], quote)
	if end < 0 {
		return errors.New("unterminated quoted string")
	}
	text, err := unquote(p.text[p.pos:p.pos+end], quote)
	if err != nil {
		return err
	}
	p.pos += end + 1
	p.add(textNode{text})
	return nil
}

// closingQuote returns the index of the closing quote in s, or -1.
func closingQuote(s string, quote byte) int {
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\n':
			return -1
		case s[i] == quote && (i == 0 || s[i-1] != '\\'):
			return i
		}
	}
	return -1
}

// unquote returns a quoted text without its escapes.
func unquote(s string, quote byte) (string, error) {
	if !strings.ContainsRune(s, '\\') {
		return s, nil
	}
	var b strings.Builder
	for rest := s; rest != ""; {
		r, multibyte, tail, err := strconv.UnquoteChar(rest, quote)
		if err != nil {
			return "", fmt.Errorf("unquote string %s error %w", s, err)
		}
		if rest = tail; r < utf8.RuneSelf || !multibyte {
			b.WriteByte(byte(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String(), nil
}

// readUntil returns the text before end, and moves behind end. It does not look for end
// in quotes.
func (p *pathParser) readUntil(end string) (string, bool) {
	start := p.pos
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		switch {
		case c == '\n':
			return "", false
		case strings.HasPrefix(p.text[p.pos:], end):
			text := p.text[start:p.pos]
			p.pos += len(end)
			return text, true
		case c == '\'' || c == '"':
			if n := closingQuote(p.text[p.pos+1:], c); n >= 0 {
				p.pos += n + 1
			}
		}
		p.pos++
	}
	return "", false
}

// parseBrackets reads the text in brackets: an index, a slice, a key, or a union of them.
func (p *pathParser) parseBrackets() error {
	text, ok := p.readUntil("]")
	if !ok {
		return errors.New("unterminated array")
	}
	parts := splitUnion(text)
	if len(parts) == 1 {
		nodes, err := parseElement(text)
		p.out = append(p.out, nodes...)
		return err
	}
	var u unionNode
	for _, part := range parts {
		nodes, err := parseElement(strings.Trim(part, " "))
		if err != nil {
			return err
		}
		u.branches = append(u.branches, nodes)
	}
	p.add(u)
	return nil
}

// splitUnion splits the text in brackets at its commas.
func splitUnion(text string) []string {
	p := &pathParser{text: text}
	var parts []string
	for {
		start := p.pos
		part, more := p.readUntil(",")
		if !more {
			return append(parts, text[start:])
		}
		parts = append(parts, part)
	}
}

var sliceForm = regexp.MustCompile(`^(-?\d*)(:-?\d*)?(:-?\d*)?$`)

// parseElement parses one index, slice or key.
func parseElement(text string) ([]node, error) {
	if text == "*" {
		text = ":"
	}
	if n := len(text); n >= 2 && text[0] == '"' && closingQuote(text[1:], '"') == n-2 {
		key, err := unquote(text[1:n-1], '"')
		return []node{fieldNode{key}}, err
	}
	if n := len(text); n >= 2 && text[0] == '\'' && strings.IndexByte(text[1:], '\'') == n-2 {
		if nodes, err := parseAction("." + text[1:n-1]); err == nil {
			return nodes, nil
		}
		return []node{fieldNode{text[1 : n-1]}}, nil
	}
	m := sliceForm.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("invalid array index %s", text)
	}
	var s sliceNode
	var err error
	number := func(s string) (n int, has bool) {
		if s = strings.TrimPrefix(s, ":"); s == "" || err != nil {
			return 0, false
		}
		if n, err = strconv.Atoi(s); err != nil {
			err = fmt.Errorf("array index %s is not a number", s)
		}
		return n, true
	}
	s.start, _ = number(m[1])
	s.end, s.hasEnd = number(m[2])
	s.step, s.hasStep = number(m[3])
	if m[2] == "" {
		s.end, s.hasEnd, s.isIndex = s.start+1, true, true
	}
	return []node{s}, err
}

var filterForm = regexp.MustCompile(`^([^!<>=]+)([!<>=]+)(.+?)$`)

// parseFilter reads a filter, such as [?(@.type=="Ready")], after its "[?(".
func (p *pathParser) parseFilter() error {
	text, ok := p.readUntil(")")
	if !ok {
		return errors.New("unterminated filter")
	}
	if p.next() != ']' {
		return errors.New("unclosed array expect ]")
	}
	m := filterForm.FindStringSubmatch(text)
	var f filterNode
	var err error
	if m == nil {
		f.left, err = parseAction(text)
		p.add(f)
		return err
	}
	f.op = m[2]
	switch f.op {
	case "==", "!=", "<", "<=", ">", ">=":
	default:
		return fmt.Errorf("unrecognized filter operator %s", f.op)
	}
	if f.left, err = parseAction(m[1]); err != nil {
		return err
	}
	f.right, err = parseAction(m[3])
	p.add(f)
	return err
}
