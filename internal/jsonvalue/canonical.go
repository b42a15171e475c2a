package jsonvalue

import (
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// AppendCanonical appends a value of Decode as json.Marshal encodes it: the members of an object in the order of their
// names, numbers as they were written, no white space. Texts with the same meaning have one canonical form, unless
// they write a number differently.
func AppendCanonical(b []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendText(b, name), ':')
			b = AppendCanonical(b, v[name])
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, element := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = AppendCanonical(b, element)
		}
		return append(b, ']')
	case string:
		return appendText(b, v)
	case json.Number:
		return append(b, v...)
	case bool:
		if v {
			return append(b, "true"...)
		}
		return append(b, "false"...)
	}
	return append(b, "null"...)
}

// appendText appends a string as json.Marshal encodes it.
func appendText(b []byte, v string) []byte {
	for i := range len(v) {
		switch c := v[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&', c == 0x7f:
			text, _ := json.Marshal(v) // of a string there is no error
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, v...)
	return append(b, '"')
}
