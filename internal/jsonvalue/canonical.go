package jsonvalue

import (
	"bytes"
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

// AppendCanonicalText appends the canonical form of a JSON text: that of AppendCanonical for the result of Decode. For
// usual texts it decodes no value. Errors are those of Decode, and b is then unchanged.
func AppendCanonicalText(b, text []byte) ([]byte, error) {
	c := canonizer{decoder{data: text}}
	if longer, ok := c.append(b, 0); ok && c.next() == 0 && c.at == len(text) {
		return longer, nil
	}
	v, err := Decode(text)
	if err != nil {
		return b, err
	}
	return AppendCanonical(b, v), nil
}

// canonizer appends the canonical forms of the values that it reads. Its methods return false for text that Decode must
// read: texts with escapes or with characters outside of ASCII, and what decoder does not read.
type canonizer struct{ decoder }

// append reads a value that is nested in depth others.
func (c *canonizer) append(b []byte, depth int) ([]byte, bool) {
	if depth > maxFastDepth {
		return b, false
	}
	switch c.next() {
	case '{':
		return c.appendObject(b, depth)
	case '[':
		return c.appendArray(b, depth)
	case '"':
		return c.appendPlain(b)
	case 't':
		return append(b, "true"...), c.word("true")
	case 'f':
		return append(b, "false"...), c.word("false")
	case 'n':
		return append(b, "null"...), c.word("null")
	}
	n, ok := c.number()
	return append(b, n...), ok
}

// appendPlain reads a string whose canonical form has the same bytes.
func (c *canonizer) appendPlain(b []byte) ([]byte, bool) {
	begin := c.at
	for c.at++; c.at < len(c.data); c.at++ {
		switch v := c.data[c.at]; {
		case v == '"':
			c.at++
			return append(b, c.data[begin:c.at]...), true
		case needsEscape(v):
			return b, false
		}
	}
	return b, false
}

// appendObject reads an object. The last of several members with one name counts.
func (c *canonizer) appendObject(b []byte, depth int) (_ []byte, ok bool) {
	c.at++ // the brace
	b = append(b, '{')
	if c.take('}') {
		return append(b, '}'), true
	}
	begin := len(b)
	var ends [16]int // of the members, without their commas
	members := ends[:0]
	isSorted := true
	for last := ""; ; {
		at := len(b)
		if c.next() != '"' {
			return b, false
		}
		if b, ok = c.appendPlain(b); !ok || !c.take(':') {
			return b, false
		}
		// The quotes at the end must not count in the order: "a" comes before "a!".
		name := string(b[at+1 : len(b)-1])
		isSorted = isSorted && (len(members) == 0 || last < name)
		last = name
		if b, ok = c.append(append(b, ':'), depth+1); !ok {
			return b, false
		}
		members = append(members, len(b))
		if c.take('}') {
			break
		}
		if !c.take(',') {
			return b, false
		}
		b = append(b, ',')
	}
	if !isSorted {
		b = sortMembers(b, begin, members)
	}
	return append(b, '}'), true
}

// sortMembers sorts the members of an object by their names, and drops those whose name comes again later. The members
// begin at begin, and ends has their ends in b; a comma follows each but the last.
func sortMembers(b []byte, begin int, ends []int) []byte {
	type member struct{ name, text []byte }
	unsorted := slices.Clone(b[begin:])
	members, at := make([]member, len(ends)), 0
	for i, end := range ends {
		text := unsorted[at : end-begin]
		members[i] = member{text[1 : 1+bytes.IndexByte(text[1:], '"')], text}
		at = end - begin + 1
	}
	slices.SortStableFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	b = b[:begin]
	for i, m := range members {
		if i+1 < len(members) && bytes.Equal(m.name, members[i+1].name) {
			continue
		}
		if len(b) > begin {
			b = append(b, ',')
		}
		b = append(b, m.text...)
	}
	return b
}

// appendArray reads an array.
func (c *canonizer) appendArray(b []byte, depth int) (_ []byte, ok bool) {
	c.at++ // the bracket
	b = append(b, '[')
	if c.take(']') {
		return append(b, ']'), true
	}
	for {
		if b, ok = c.append(b, depth+1); !ok {
			return b, false
		}
		if c.take(']') {
			return append(b, ']'), true
		}
		if !c.take(',') {
			return b, false
		}
		b = append(b, ',')
	}
}

// needsEscape reports whether json.Marshal may write a byte of a string in another way.
func needsEscape(c byte) bool {
	return c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' || c == 0x7f
}

// appendText appends a string as json.Marshal encodes it.
func appendText(b []byte, v string) []byte {
	for i := range len(v) {
		if needsEscape(v[i]) {
			text, _ := json.Marshal(v) // of a string there is no error
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, v...)
	return append(b, '"')
}
