package maestro

import (
	"net/http"
	"strings"

	"atoll.dev/internal/rest"
)

// condition is one "field = 'value'" of a search.
type condition struct{ field, value string }

// parseSearch reads what clients cannot do without today: equality of whole
// fields, joined by "and". Everything else is refused rather than half
// understood; package search will read the whole languages.
func parseSearch(text string, fields ...string) ([]condition, error) {
	rest := strings.TrimSpace(text)
	if rest == "" {
		return nil, nil
	}
	var conditions []condition
	for {
		i := strings.IndexFunc(rest, func(r rune) bool { return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '_') })
		if i <= 0 {
			return nil, unsupportedSearch(text, fields)
		}
		name := strings.ToLower(rest[:i])
		known := false
		for _, f := range fields {
			known = known || f == name
		}
		if !known {
			return nil, unsupportedSearch(text, fields)
		}
		var ok bool
		if rest, ok = strings.CutPrefix(strings.TrimSpace(rest[i:]), "="); !ok {
			return nil, unsupportedSearch(text, fields)
		}
		value, tail, ok := quoted(strings.TrimSpace(rest))
		if !ok {
			return nil, unsupportedSearch(text, fields)
		}
		conditions = append(conditions, condition{name, value})
		rest = strings.TrimLeft(tail, " \t\n")
		if rest == "" {
			return conditions, nil
		}
		if len(rest) < 4 || !strings.EqualFold(rest[:3], "and") || len(rest) == len(tail) || !strings.ContainsRune(" \t\n", rune(rest[3])) {
			return nil, unsupportedSearch(text, fields)
		}
		rest = strings.TrimSpace(rest[3:])
	}
}

// quoted reads a string in single quotes; two of them stand for one.
func quoted(s string) (value, tail string, ok bool) {
	if !strings.HasPrefix(s, "'") {
		return "", "", false
	}
	var b strings.Builder
	for s = s[1:]; ; {
		i := strings.IndexByte(s, '\'')
		if i < 0 {
			return "", "", false
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		if !strings.HasPrefix(s, "'") {
			return b.String(), s, true
		}
		b.WriteByte('\'')
		s = s[1:]
	}
}

func unsupportedSearch(text string, fields []string) error {
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "..."
	}
	return rest.Errorf(http.StatusBadRequest, codeBadRequest,
		"Failed to parse search query: %s; possible today: field='value' joined by and, with %s", text, strings.Join(fields, ", "))
}
