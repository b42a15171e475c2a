package search

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// PairsSQL returns the SQL of an array that has each member of an object of strings as PostgreSQL prints it:
// {"a": "b", "c": "d"} has the elements "a": "b" and "c": "d". object is the object's expression in SQL. A GIN index
// on the array decides which rows have a member. With an index on the object itself PostgreSQL reads the object of
// each found row again, which costs most where the object is stored outside of the row.
func PairsSQL(object string) string {
	return "string_to_array(btrim((" + object + ")::text, '{}'), '" + pairSeparator + "')"
}

// pairSeparator is the text that PostgreSQL prints between two members of an object.
const pairSeparator = ", "

// pairText returns the element of PairsSQL for a member. ok is false for a member that the array has in several
// elements, because the separator is in its name or value.
func pairText(name string, value any) (pair string, ok bool) {
	pair = printAsJSONB(name) + ": " + printAsJSONB(value)
	return pair, !strings.Contains(pair, pairSeparator)
}

// pairTexts returns the elements of PairsSQL for the members of a decoded object. ok is false for an object without
// members, for one whose values are not all strings, and where pairText is not ok.
func pairTexts(object any) (pairs []string, ok bool) {
	members, _ := object.(map[string]any)
	for name, value := range members {
		pair, ok := pairText(name, value)
		if _, isText := value.(string); !isText || !ok {
			return nil, false
		}
		pairs = append(pairs, pair)
	}
	slices.Sort(pairs)
	return pairs, len(pairs) > 0
}

// printAsJSONB returns the JSON of a text as PostgreSQL prints it.
func printAsJSONB(text any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic("search: a text of a pair: " + err.Error())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// isStringMap reports whether the field refers to one of its objects of strings.
func (x fieldRef) isStringMap() bool {
	return slices.ContainsFunc(x.definition.StringMaps, func(m []string) bool { return slices.Equal(m, x.path) })
}
