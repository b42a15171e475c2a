package search

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxPattern bounds the length of a pattern. PostgreSQL's time for a pattern is
// in proportion to its length and to that of the text.
const maxPattern = 256

// checkPattern returns a message for a pattern at which PostgreSQL would fail or
// need long, and "" for others. It allows regular expressions that have the
// same meaning everywhere and never backtrack: no back references, no look-around, no counted
// repetition, no classes by letter.
func checkPattern(op, pattern string) string {
	if utf8.RuneCountInString(pattern) > maxPattern {
		return "the pattern is too long"
	}
	if op != "~" {
		escapes := len(pattern) - len(strings.TrimRight(pattern, `\`))
		if escapes%2 == 1 {
			return `the pattern ends with a single \`
		}
		return ""
	}
	class := false
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		next := byte(0)
		if i+1 < len(pattern) {
			next = pattern[i+1]
		}
		switch {
		case c == '\\' && (next == 0 || isStart(next) || isDigit(next) || next >= utf8.RuneSelf):
			return `\ stands before a character that needs none`
		case c == '\\' && class:
			return `\ stands in brackets`
		case c == '\\':
			i++
		case class && c == '[', class && c == ']' && pattern[i-1] == '[', class && c == ']' &&
			strings.HasSuffix(pattern[:i], "[^"):
			return "a bracket stands in brackets"
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '{' || c == '}':
			return "repetition in braces is not possible"
		case c == '(' && (next == '?' || next == '*'):
			return "the group is of a kind that is not possible"
		case (c == '*' || c == '+' || c == '?') && (next == '*' || next == '+' || next == '?'):
			return "a repetition is repeated"
		case c == '^' && i > 0, c == '$' && i+1 < len(pattern):
			return "^ stands at the beginning only, and $ at the end"
		case c == '^' && (next == '*' || next == '+' || next == '?'):
			return "there is nothing to repeat"
		case strings.HasPrefix(pattern, "***"):
			return "there is nothing to repeat"
		}
	}
	if strings.Count(pattern, "*")+strings.Count(pattern, "+") > 8 {
		return "more than 8 repetitions"
	}
	if strings.Contains(pattern, "()") || strings.Contains(pattern, "(|") || strings.Contains(pattern, "|)") ||
		strings.Contains(pattern, "||") ||
		strings.HasPrefix(strings.TrimPrefix(pattern, "^"), "|") || strings.HasSuffix(strings.TrimSuffix(pattern, "$"),
		"|") {
		return "an alternative is empty"
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return "the pattern is not a regular expression"
	}
	return ""
}

// like reports whether a text matches a pattern of SQL: % is any text, _ any
// character, and \ makes the next character literal.
func like(text, pattern string) bool {
	t, p := []rune(text), []rune(pattern)
	i, j := 0, 0
	star, mark := -1, 0 // where the last % was, and how far its text goes
	for i < len(t) {
		switch {
		case j < len(p) && p[j] == '%':
			star, mark = j, i
			j++
			continue
		case j < len(p) && p[j] == '_':
			i, j = i+1, j+1
			continue
		case j < len(p):
			k := j
			if p[k] == '\\' {
				k++
			}
			if p[k] == t[i] {
				i, j = i+1, k+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		mark++
		i, j = mark, star+1
	}
	for j < len(p) && p[j] == '%' {
		j++
	}
	return j == len(p)
}

// lower folds ASCII letters only, as PostgreSQL does with the collation C.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
