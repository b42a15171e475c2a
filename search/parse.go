package search

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parser reads both languages by recursive descent. They differ in how values
// are written, and in the arrows.
type parser struct {
	scanner
	query  *Query
	tok    token // the next token
	depth  int
	values int
}

// failure is the panic that carries an *Error out of the recursion.
type failure struct{ err *Error }

func (p *parser) fail(pos int, format string, args ...any) {
	panic(failure{p.query.errorf(pos, format, args...)})
}

func (p *parser) parse() (root node, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = f.err
		}
	}()
	p.advance()
	if p.tok.kind == endToken {
		return nil, nil
	}
	root = p.disjunction()
	if p.tok.kind != endToken {
		p.unexpected("and, or, or the end")
	}
	return root, nil
}

func (p *parser) advance() {
	t, fault := p.next()
	if fault != "" {
		p.fail(t.pos, "%s", fault)
	}
	p.tok = t
}

func (p *parser) unexpected(wanted string) {
	if p.tok.kind == endToken {
		p.fail(p.tok.pos, "the search ends where %s is expected", wanted)
	}
	p.fail(p.tok.pos, "%q stands where %s is expected", shorten(p.query.text[p.tok.pos:p.tok.end]), wanted)
}

// keyword reports whether the next token is this keyword.
func (p *parser) keyword(word string) bool {
	return p.tok.kind == wordToken && strings.EqualFold(p.tok.text, word)
}

func (p *parser) sign(text string) bool { return p.tok.kind == signToken && p.tok.text == text }

// took skips the keyword and returns true if it is the next token.
func (p *parser) took(word string) bool {
	if !p.keyword(word) {
		return false
	}
	p.advance()
	return true
}

func (p *parser) expect(sign string) {
	if !p.sign(sign) {
		p.unexpected(sign)
	}
	p.advance()
}

// deeper goes one level down in the recursion, and fails below the limit. The
// function that it returns goes up again.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > p.query.limits.Depth {
		p.fail(p.tok.pos, "nested deeper than %d", p.query.limits.Depth)
	}
	return func() { p.depth-- }
}

func (p *parser) disjunction() node {
	pos := p.tok.pos
	terms := []node{p.conjunction()}
	for p.took("or") {
		terms = append(terms, p.conjunction())
	}
	if len(terms) == 1 {
		return terms[0]
	}
	return logic{pos: pos, or: true, terms: terms}
}

func (p *parser) conjunction() node {
	pos := p.tok.pos
	terms := []node{p.negated()}
	for p.took("and") {
		terms = append(terms, p.negated())
	}
	if len(terms) == 1 {
		return terms[0]
	}
	return logic{pos: pos, terms: terms}
}

func (p *parser) negated() node {
	pos := p.tok.pos
	if !p.took("not") {
		return p.primary()
	}
	defer p.deeper()()
	return negation{pos: pos, of: p.negated()}
}

// primary is a condition, or several in parentheses.
func (p *parser) primary() node {
	if !p.sign("(") || p.opensSum() {
		return p.condition()
	}
	defer p.deeper()()
	p.advance()
	n := p.disjunction()
	p.expect(")")
	return n
}

// opensSum reports whether the next parenthesis encloses an operand and not a
// condition: it closes before any comparison.
func (p *parser) opensSum() bool {
	if p.paths {
		return false // no sums there
	}
	s := p.scanner
	for depth := 1; depth > 0; {
		t, fault := s.next()
		switch {
		case fault != "" || t.kind == endToken || t.kind == stringToken:
			return false
		case t.kind == wordToken && reserved[strings.ToLower(t.text)]:
			return false
		case t.kind != signToken:
		case t.text == "(":
			depth++
		case t.text == ")":
			depth--
		case !strings.Contains("+-*/%.[]", t.text):
			return false
		}
	}
	return true
}

var reserved = map[string]bool{"and": true, "or": true, "not": true, "like": true, "ilike": true, "between": true,
	"in": true, "is": true, "null": true}

func (p *parser) condition() node {
	left := p.sum()
	pos := p.tok.pos
	if p.tok.kind == signToken {
		switch op := p.tok.text; op {
		case "=", "<>", "<", "<=", ">", ">=":
			return p.comparison(pos, op, left)
		case "==":
			return p.comparison(pos, "=", left)
		case "!=":
			return p.comparison(pos, "<>", left)
		case "~=", "~!":
			p.advance()
			return comparison{pos: pos, op: "~", not: op == "~!", left: left, right: p.value()}
		case "@>":
			p.advance()
			return comparison{pos: pos, op: op, left: left, right: p.value()}
		}
		p.unexpected("a comparison")
	}
	if p.took("is") {
		not := p.took("not")
		if p.took("null") {
			return nullness{pos: pos, not: not, of: left}
		}
		op := "="
		if not {
			op = "<>"
		}
		return comparison{pos: pos, op: op, left: left, right: p.value()}
	}
	not := p.took("not")
	switch {
	case p.keyword("like"), p.keyword("ilike"):
		op := strings.ToLower(p.tok.text)
		p.advanceToValue()
		return comparison{pos: pos, op: op, not: not, left: left, right: p.value()}
	case p.keyword("in"):
		return p.membership(pos, not, left)
	case p.took("between"):
		low := p.value()
		if !p.took("and") {
			p.unexpected("and")
		}
		return span{pos: pos, not: not, of: left, low: low, high: p.value()}
	}
	p.unexpected("a comparison")
	return nil
}

// comparison reads the right side. With JSON paths the word null there stands
// for the absence of a value: <>null is how clients ask for the presence of a
// label.
func (p *parser) comparison(pos int, op string, left operand) node {
	if !p.paths {
		p.advance()
		if p.quotedText() {
			return comparison{pos: pos, op: op, left: left, right: p.value()}
		}
		return comparison{pos: pos, op: op, left: left, right: p.sum()}
	}
	p.advanceToValue()
	quoted := strings.HasPrefix(p.query.text[p.tok.pos:], "'")
	v := p.value()
	if !quoted && strings.EqualFold(v.text, "null") && (op == "=" || op == "<>") {
		return nullness{pos: pos, not: op == "<>", of: left}
	}
	return comparison{pos: pos, op: op, left: left, right: v}
}

// quotedText reports that the next token is a text in double quotes or backquotes.
// In TSL these are quotes of a text on the right of a comparison; with a dot after
// them they are a part of a name.
func (p *parser) quotedText() bool {
	if p.paths || p.tok.kind != quotedToken {
		return false
	}
	s := p.scanner
	after, _ := s.next()
	return after.kind != signToken || after.text != "."
}

// advanceToValue reads the next token, which must be a value. With JSON paths that
// may be any bare text.
func (p *parser) advanceToValue() {
	if !p.paths {
		p.advance()
		return
	}
	p.skipSpace()
	if p.pos == len(p.text) || strings.ContainsRune("'(),", rune(p.text[p.pos])) {
		p.advance()
		return
	}
	p.tok = p.bare()
}

func (p *parser) membership(pos int, not bool, left operand) node {
	p.advance() // in
	closing := ")"
	if p.sign("[") {
		closing = "]"
	} else if !p.sign("(") {
		p.unexpected("(")
	}
	m := membership{pos: pos, not: not, of: left}
	p.advanceToValue()
	if !p.paths && p.sign(closing) {
		p.advance()
		return m
	}
	for {
		m.list = append(m.list, p.value())
		if p.sign(closing) {
			p.advance()
			return m
		}
		if !p.sign(",") {
			p.unexpected(", or " + closing)
		}
		p.advanceToValue()
	}
}

// value is a literal.
func (p *parser) value() literal {
	if p.values++; p.values > p.query.limits.Values {
		p.fail(p.tok.pos, "more than %d values", p.query.limits.Values)
	}
	t := p.tok
	l := literal{pos: t.pos, text: t.text}
	switch {
	case t.kind == stringToken, t.kind == quotedToken && !p.paths:
	case t.kind == timeToken:
		when, ok := parseTime(t.text)
		if !ok {
			p.fail(t.pos, "%q is no time", shorten(t.text))
		}
		l.kind, l.time = timeLiteral, when
	case t.kind == numberToken:
		l.kind, l.number = numberLiteral, p.number()
	case p.sign("-"), p.sign("+"):
		p.advance()
		if p.tok.kind != numberToken {
			p.unexpected("a number")
		}
		l.kind, l.number = numberLiteral, p.number()
		if t.text == "-" {
			l.number = -l.number
		}
	case p.keyword("true"), p.keyword("false"):
		l.kind, l.text = boolLiteral, strings.ToLower(t.text)
	default:
		p.unexpected("a value")
	}
	p.advance()
	return l
}

// number returns the value of the next token, a number.
func (p *parser) number() float64 {
	n, err := parseNumber(p.tok.text)
	if err != nil {
		p.fail(p.tok.pos, "%q is not a number that can be compared", shorten(p.tok.text))
	}
	return n
}

// parseNumber reads digits with an SI suffix: 5k is 5000, 5Ki is 5120.
func parseNumber(text string) (float64, error) {
	scale := 1.0
	if i := strings.IndexAny(text, "kKmMgGtTpP"); i >= 0 {
		base := 1000.0
		if len(text) > i+1 {
			base = 1024
		}
		scale = math.Pow(base, float64(1+strings.IndexByte("kmgtp", text[i]|0x20)))
		text = text[:i]
	}
	n, err := strconv.ParseFloat(text, 64)
	if n *= scale; err == nil && math.IsInf(n, 0) {
		err = strconv.ErrRange
	}
	return n, err
}

// parseTime reads the forms of a time. Without a zone it is in UTC.
func parseTime(s string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02 15:04:05.999999999",
		"2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC().Truncate(time.Microsecond), true // PostgreSQL keeps microseconds
		}
	}
	return time.Time{}, false
}

// sum is an operand: fields and numbers, with arithmetic between them.
func (p *parser) sum() operand {
	left := p.product()
	for p.sign("+") || p.sign("-") {
		pos, op := p.tok.pos, p.tok.text[0]
		p.advance()
		left = arithmetic{pos: pos, op: op, left: left, right: p.product()}
	}
	return left
}

func (p *parser) product() operand {
	left := p.factor()
	for p.sign("*") || p.sign("/") || p.sign("%") {
		pos, op := p.tok.pos, p.tok.text[0]
		p.advance()
		left = arithmetic{pos: pos, op: op, left: left, right: p.factor()}
	}
	return left
}

func (p *parser) factor() operand {
	switch {
	case p.sign("(") && !p.paths:
		defer p.deeper()()
		p.advance()
		o := p.sum()
		p.expect(")")
		return o
	case p.sign("[") && !p.paths, p.tok.kind == quotedToken, p.tok.kind == wordToken && !p.keyword("true") &&
		!p.keyword("false"):
		return p.name()
	}
	if p.paths {
		p.unexpected("a field")
	}
	return p.value()
}

// name is a field: a.b.c, or a->'b'->>'c'.
func (p *parser) name() operand {
	n := name{pos: p.tok.pos}
	for {
		n.parts = append(n.parts, p.part())
		if !p.sign(".") {
			break
		}
		if key := p.key(n.parts); key != "" {
			n.parts = append(n.parts, key)
			p.pos += len(key)
			p.advance()
			break
		}
		p.advance()
	}
	if len(n.parts) > 16 {
		p.fail(n.pos, "a name of more than 16 parts")
	}
	for p.paths && !n.text && (p.sign("->") || p.sign("->>")) {
		n.text = p.tok.text == "->>"
		p.advance()
		if p.tok.kind != stringToken {
			p.unexpected("a member's name in single quotes")
		}
		n.path = append(n.path, p.tok.text)
		if len(n.path) > 16 {
			p.fail(p.tok.pos, "a path of more than 16 steps")
		}
		p.advance()
	}
	return n
}

var keyPattern = regexp.MustCompile(`^[A-Za-z0-9_./-]+`)

// key returns the key after a keyed field, whose dot is the next token; "" for
// other fields, and for a key in quotes.
func (p *parser) key(parts []string) string {
	field := func(name string) bool { return strings.EqualFold(name, parts[len(parts)-1]) }
	if p.paths || len(parts) > 2 || !slices.ContainsFunc(p.query.limits.Keyed, field) {
		return ""
	}
	return keyPattern.FindString(p.text[p.pos:])
}

// part is one part of a name: a word, or anything in quotes or brackets.
func (p *parser) part() string {
	t := p.tok
	switch {
	case t.kind == quotedToken:
	case t.kind == wordToken && !reserved[strings.ToLower(t.text)]:
	case p.sign("["):
		i := strings.IndexByte(p.text[p.pos:], ']')
		if i < 0 {
			p.fail(t.pos, "a bracket that does not close")
		}
		t.text = p.text[p.pos : p.pos+i]
		p.pos += i + 1
	default:
		p.unexpected("a field")
	}
	p.advance()
	return t.text
}
