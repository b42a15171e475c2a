package search

import (
	"strings"
)

// parser reads both languages by recursive descent; they differ in how values are written, and in
// the arrows of JSON paths. Each method that begins with parse reads one construct: it begins at
// the next token, leaves the token after the construct as the next token, and panics with a failure
// when the text has something else.
type parser struct {
	scanner
	query      *Query
	next       token // the next token
	depth      int   // how many parentheses and "not" are open
	valueCount int   // values so far
}

// failure is the panic with which parser and binder leave their recursion.
type failure struct{ err *Error }

// recoverFailure is deferred by a function that starts such a recursion: it stores the error of a
// failure in err, and passes other panics on.
func recoverFailure(err *error) {
	if r := recover(); r != nil {
		f, ok := r.(failure)
		if !ok {
			panic(r)
		}
		*err = f.err
	}
}

func (p *parser) fail(pos int, format string, args ...any) {
	panic(failure{p.query.newError(pos, format, args...)})
}

// parseQuery reads the whole text. The root is nil when the text is empty.
func (p *parser) parseQuery() (root node, err error) {
	defer recoverFailure(&err)
	p.advance()
	if p.next.kind == endToken {
		return nil, nil
	}
	root = p.parseOr()
	if p.next.kind != endToken {
		p.failExpected("and, or, or the end")
	}
	return root, nil
}

// advance scans the token after the next one, which becomes the next one.
func (p *parser) advance() {
	t, fault := p.scan()
	if fault != "" {
		p.fail(t.pos, "%s", fault)
	}
	p.next = t
}

// failExpected fails because the next token is not the wanted construct.
func (p *parser) failExpected(wanted string) {
	if p.next.kind == endToken {
		p.fail(p.next.pos, "the search ends where %s is expected", wanted)
	}
	p.fail(p.next.pos, "%q stands where %s is expected", shorten(p.query.text[p.next.pos:p.next.end]), wanted)
}

// isKeyword reports whether the next token is this keyword.
func (p *parser) isKeyword(word string) bool {
	return p.next.kind == wordToken && strings.EqualFold(p.next.text, word)
}

// isSign reports whether the next token is this operator or bracket.
func (p *parser) isSign(text string) bool { return p.next.kind == signToken && p.next.text == text }

// acceptKeyword reports whether the next token is this keyword, and advances over it if it is.
func (p *parser) acceptKeyword(word string) bool {
	if !p.isKeyword(word) {
		return false
	}
	p.advance()
	return true
}

// expectSign advances over the sign, or fails when the next token is another one.
func (p *parser) expectSign(sign string) {
	if !p.isSign(sign) {
		p.failExpected(sign)
	}
	p.advance()
}

// enter counts one more open parenthesis or "not" until the caller calls leave. It fails at the
// limit.
func (p *parser) enter() (leave func()) {
	if p.depth++; p.depth > p.query.limits.Depth {
		p.fail(p.next.pos, "nested deeper than %d", p.query.limits.Depth)
	}
	return func() { p.depth-- }
}

// parseOr reads conditions that "or" joins.
func (p *parser) parseOr() node {
	pos := p.next.pos
	terms := []node{p.parseAnd()}
	for p.acceptKeyword("or") {
		terms = append(terms, p.parseAnd())
	}
	if len(terms) == 1 {
		return terms[0]
	}
	return logic{pos: pos, or: true, terms: terms}
}

// parseAnd reads conditions that "and" joins.
func (p *parser) parseAnd() node {
	pos := p.next.pos
	terms := []node{p.parseNot()}
	for p.acceptKeyword("and") {
		terms = append(terms, p.parseNot())
	}
	if len(terms) == 1 {
		return terms[0]
	}
	return logic{pos: pos, terms: terms}
}

// parseNot reads a condition, with "not" before it or without.
func (p *parser) parseNot() node {
	pos := p.next.pos
	if !p.acceptKeyword("not") {
		return p.parseTerm()
	}
	defer p.enter()()
	return negation{pos: pos, term: p.parseNot()}
}

// parseTerm reads one comparison, or conditions in parentheses.
func (p *parser) parseTerm() node {
	if !p.isSign("(") || p.isOperandInParentheses() {
		return p.parseCondition()
	}
	defer p.enter()()
	p.advance()
	n := p.parseOr()
	p.expectSign(")")
	return n
}

// isOperandInParentheses reports whether the next parenthesis encloses an operand and not a
// condition: it closes before any comparison.
func (p *parser) isOperandInParentheses() bool {
	if p.jsonPaths {
		return false // the language with JSON paths has no arithmetic
	}
	s := p.scanner
	for depth := 1; depth > 0; {
		t, fault := s.scan()
		switch {
		case fault != "" || t.kind == endToken || t.kind == stringToken:
			return false
		case t.kind == wordToken && reservedWords[strings.ToLower(t.text)]:
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

var reservedWords = map[string]bool{"and": true, "or": true, "not": true, "like": true, "ilike": true, "between": true,
	"in": true, "is": true, "null": true}

// parseCondition reads one comparison.
func (p *parser) parseCondition() node {
	left := p.parseSum()
	pos := p.next.pos
	if p.next.kind == signToken {
		switch op := p.next.text; op {
		case "=", "<>", "<", "<=", ">", ">=":
			return p.parseComparison(pos, op, left)
		case "==":
			return p.parseComparison(pos, "=", left)
		case "!=":
			return p.parseComparison(pos, "<>", left)
		case "~=", "~!":
			p.advance()
			return comparison{pos: pos, op: "~", not: op == "~!", left: left, right: p.parseValue()}
		case "@>":
			p.advance()
			return comparison{pos: pos, op: op, left: left, right: p.parseValue()}
		}
		p.failExpected("a comparison")
	}
	if p.acceptKeyword("is") {
		not := p.acceptKeyword("not")
		if p.acceptKeyword("null") {
			return nullTest{pos: pos, not: not, operand: left}
		}
		op := "="
		if not {
			op = "<>"
		}
		return comparison{pos: pos, op: op, left: left, right: p.parseValue()}
	}
	not := p.acceptKeyword("not")
	switch {
	case p.isKeyword("like"), p.isKeyword("ilike"):
		op := strings.ToLower(p.next.text)
		p.advanceToValue()
		return comparison{pos: pos, op: op, not: not, left: left, right: p.parseValue()}
	case p.isKeyword("in"):
		return p.parseMembership(membership{pos: pos, not: not, left: left})
	case p.acceptKeyword("between"):
		low := p.parseValue()
		if !p.acceptKeyword("and") {
			p.failExpected("and")
		}
		return between{pos: pos, not: not, left: left, low: low, high: p.parseValue()}
	}
	p.failExpected("a comparison")
	return nil
}

// parseComparison reads the operator and the right side of a comparison. In the language with JSON
// paths the word null on the right makes it a nullTest: clients search with <>null for objects that
// have a label.
func (p *parser) parseComparison(pos int, op string, left operand) node {
	if !p.jsonPaths {
		p.advance()
		if p.isQuotedText() {
			return comparison{pos: pos, op: op, left: left, right: p.parseValue()}
		}
		return comparison{pos: pos, op: op, left: left, right: p.parseSum()}
	}
	p.advanceToValue()
	quoted := strings.HasPrefix(p.query.text[p.next.pos:], "'")
	v := p.parseValue()
	if !quoted && strings.EqualFold(v.text, "null") && (op == "=" || op == "<>") {
		return nullTest{pos: pos, not: op == "<>", operand: left}
	}
	return comparison{pos: pos, op: op, left: left, right: v}
}

// isQuotedText reports whether the next token is a text in double quotes or backquotes on the right
// of a comparison. In TSL these quotes enclose a text; with a dot after them they enclose a part of
// a name.
func (p *parser) isQuotedText() bool {
	if p.jsonPaths || p.next.kind != quotedToken {
		return false
	}
	s := p.scanner
	after, _ := s.scan()
	return after.kind != signToken || after.text != "."
}

// advanceToValue advances to a token that must be a value. In the language with JSON paths that may
// be a text without quotes.
func (p *parser) advanceToValue() {
	if !p.jsonPaths {
		p.advance()
		return
	}
	p.skipSpace()
	if p.pos == len(p.text) || strings.ContainsRune("'(),", rune(p.text[p.pos])) {
		p.advance()
		return
	}
	p.next = p.scanBare()
}

// parseMembership reads the word "in" and its list of values into m.
func (p *parser) parseMembership(m membership) node {
	p.advance()
	closing := ")"
	if p.isSign("[") {
		closing = "]"
	} else if !p.isSign("(") {
		p.failExpected("(")
	}
	p.advanceToValue()
	if !p.jsonPaths && p.isSign(closing) {
		p.advance()
		return m
	}
	for {
		m.list = append(m.list, p.parseValue())
		if p.isSign(closing) {
			p.advance()
			return m
		}
		if !p.isSign(",") {
			p.failExpected(", or " + closing)
		}
		p.advanceToValue()
	}
}
