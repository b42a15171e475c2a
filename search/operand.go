package search

import (
	"regexp"
	"slices"
	"strings"
)

// parseSum reads an operand: fields and numbers with arithmetic between them.
func (p *parser) parseSum() operand {
	left := p.parseProduct()
	for p.isSign("+") || p.isSign("-") {
		pos, op := p.next.pos, p.next.text[0]
		p.advance()
		left = arithmetic{pos: pos, op: op, left: left, right: p.parseProduct()}
	}
	return left
}

// parseProduct reads operands with * / % between them.
func (p *parser) parseProduct() operand {
	left := p.parseFactor()
	for p.isSign("*") || p.isSign("/") || p.isSign("%") {
		pos, op := p.next.pos, p.next.text[0]
		p.advance()
		left = arithmetic{pos: pos, op: op, left: left, right: p.parseFactor()}
	}
	return left
}

// parseFactor reads a field, a number, or an operand in parentheses.
func (p *parser) parseFactor() operand {
	switch {
	case p.isSign("(") && !p.jsonPaths:
		defer p.enter()()
		p.advance()
		o := p.parseSum()
		p.expectSign(")")
		return o
	case p.isSign("[") && !p.jsonPaths, p.next.kind == quotedToken, p.next.kind == wordToken && !p.isKeyword("true") &&
		!p.isKeyword("false"):
		return p.parseName()
	}
	if p.jsonPaths {
		p.failExpected("a field")
	}
	return p.parseValue()
}

// parseName reads a field: a.b.c, or a->'b'->>'c'.
func (p *parser) parseName() operand {
	n := name{pos: p.next.pos}
	for {
		n.parts = append(n.parts, p.parseNamePart())
		if !p.isSign(".") {
			break
		}
		if key := p.scanKey(n.parts); key != "" {
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
	for p.jsonPaths && !n.text && (p.isSign("->") || p.isSign("->>")) {
		n.text = p.next.text == "->>"
		p.advance()
		if p.next.kind != stringToken {
			p.failExpected("a member's name in single quotes")
		}
		n.path = append(n.path, p.next.text)
		if len(n.path) > 16 {
			p.fail(p.next.pos, "a path of more than 16 steps")
		}
		p.advance()
	}
	return n
}

var keyPattern = regexp.MustCompile(`^[A-Za-z0-9_./-]+`)

// scanKey returns the key after a keyed field (Limits.Keyed), whose dot is the next token. It
// returns "" for other fields, and for a key in quotes. It does not advance.
func (p *parser) scanKey(parts []string) string {
	isLast := func(name string) bool { return strings.EqualFold(name, parts[len(parts)-1]) }
	if p.jsonPaths || len(parts) > 2 || !slices.ContainsFunc(p.query.limits.Keyed, isLast) {
		return ""
	}
	return keyPattern.FindString(p.text[p.pos:])
}

// parseNamePart reads one part of a name: a word, or any text in quotes or brackets.
func (p *parser) parseNamePart() string {
	t := p.next
	switch {
	case t.kind == quotedToken:
	case t.kind == wordToken && !reservedWords[strings.ToLower(t.text)]:
	case p.isSign("["):
		i := strings.IndexByte(p.text[p.pos:], ']')
		if i < 0 {
			p.fail(t.pos, "a bracket that does not close")
		}
		t.text = p.text[p.pos : p.pos+i]
		p.pos += i + 1
	default:
		p.failExpected("a field")
	}
	p.advance()
	return t.text
}
