package search

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// parseValue reads a literal.
func (p *parser) parseValue() literal {
	if p.valueCount++; p.valueCount > p.query.limits.Values {
		p.fail(p.next.pos, "more than %d values", p.query.limits.Values)
	}
	t := p.next
	l := literal{pos: t.pos, text: t.text}
	switch {
	case t.kind == stringToken, t.kind == quotedToken && !p.jsonPaths:
	case t.kind == timeToken:
		when, ok := parseTime(t.text)
		if !ok {
			p.fail(t.pos, "%q is no time", shorten(t.text))
		}
		l.kind, l.time = timeLiteral, when
	case t.kind == numberToken:
		l.kind, l.number = numberLiteral, p.parseNumberToken()
	case p.isSign("-"), p.isSign("+"):
		p.advance()
		if p.next.kind != numberToken {
			p.failExpected("a number")
		}
		l.kind, l.number = numberLiteral, p.parseNumberToken()
		if t.text == "-" {
			l.number = -l.number
		}
	case p.isKeyword("true"), p.isKeyword("false"):
		l.kind, l.text = boolLiteral, strings.ToLower(t.text)
	default:
		p.failExpected("a value")
	}
	p.advance()
	return l
}

// parseNumberToken returns the number that the next token has. It does not advance.
func (p *parser) parseNumberToken() float64 {
	n, err := parseNumber(p.next.text)
	if err != nil {
		p.fail(p.next.pos, "%q is not a number that can be compared", shorten(p.next.text))
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

// parseTime reads a date, or a date and a time. A time without a zone is in UTC.
func parseTime(s string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02 15:04:05.999999999",
		"2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC().Truncate(time.Microsecond), true // PostgreSQL keeps microseconds
		}
	}
	return time.Time{}, false
}
