package search

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxPattern is the maximum length of a pattern in characters. PostgreSQL needs time in proportion
// to the length of the pattern and to that of the text.
const maxPattern = 256

// checkPattern returns an error message for a pattern at which PostgreSQL would fail or need long,
// and "" for others. It allows only regular expressions that mean the same in PostgreSQL and in Go
// and never backtrack: no back references, no look-around, no counted repetition, no classes by
// letter.
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
	inBrackets := false
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		next := byte(0)
		if i+1 < len(pattern) {
			next = pattern[i+1]
		}
		switch {
		case c == '\\' && (next == 0 || isLetter(next) || isDigit(next) || next >= utf8.RuneSelf):
			return `\ stands before a character that needs none`
		case c == '\\' && inBrackets:
			return `\ stands in brackets`
		case c == '\\':
			i++
		case inBrackets && c == '[', inBrackets && c == ']' && pattern[i-1] == '[', inBrackets && c == ']' &&
			strings.HasSuffix(pattern[:i], "[^"):
			return "a bracket stands in brackets"
		case inBrackets:
			inBrackets = c != ']'
		case c == '[':
			inBrackets = true
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

// matchLike reports whether a text matches a pattern of SQL's "like": % is any text, _ any
// character, and \ makes the next character literal.
func matchLike(text, pattern string) bool {
	t, p := []rune(text), []rune(pattern)
	i, j := 0, 0
	star, mark := -1, 0 // the index of the last %, and the end of the text that it matches
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

// lowerASCII makes ASCII letters lower case and leaves others, as PostgreSQL does with the
// collation C.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
