package jsonvalue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Decode decodes one JSON value. Malformed JSON, and text after the value, are errors. The result shares no memory
// with data.
//
// Each change of a resource decodes its spec, so Decode reads usual texts without encoding/json, which reads each
// text twice. For other texts, malformed ones included, the result is that of encoding/json.
func Decode(data []byte) (any, error) {
	d := decoder{data: data}
	if v, ok := d.value(0); ok && d.next() == 0 && d.at == len(data) {
		return v, nil
	}
	return decodeByLibrary(data)
}

// decodeByLibrary is Decode by encoding/json.
func decodeByLibrary(data []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("decoding JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("decoding JSON: there is text after the value")
	}
	return v, nil
}

// maxFastDepth bounds the depth of the values that decoder reads. encoding/json reads deeper ones, up to its own bound.
const maxFastDepth = 100

// decoder reads JSON values. Its methods return false for text that encoding/json must read.
type decoder struct {
	data []byte
	at   int
}

// next moves to the next byte that is not white space, and returns it; 0 at the end.
func (d *decoder) next() byte {
	for ; d.at < len(d.data); d.at++ {
		switch c := d.data[d.at]; c {
		case ' ', '\n', '\t', '\r':
		default:
			return c
		}
	}
	return 0
}

// take skips white space and one byte c, or returns false.
func (d *decoder) take(c byte) bool {
	if d.next() != c {
		return false
	}
	d.at++
	return true
}

// value reads a value that is nested in depth others.
func (d *decoder) value(depth int) (any, bool) {
	if depth > maxFastDepth {
		return nil, false
	}
	switch d.next() {
	case '{':
		return d.object(depth)
	case '[':
		return d.array(depth)
	case '"':
		return d.text()
	case 't':
		return true, d.word("true")
	case 'f':
		return false, d.word("false")
	case 'n':
		return nil, d.word("null")
	}
	return d.number()
}

// word reads a literal.
func (d *decoder) word(literal string) bool {
	if !bytes.HasPrefix(d.data[d.at:], []byte(literal)) {
		return false
	}
	d.at += len(literal)
	return true
}

// number reads a number: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (d *decoder) number() (json.Number, bool) {
	begin := d.at
	d.skipOne("-")
	whole := d.at
	if d.digits() == 0 || d.data[whole] == '0' && d.at > whole+1 {
		return "", false
	}
	if d.skipOne(".") && d.digits() == 0 {
		return "", false
	}
	if d.skipOne("eE") {
		d.skipOne("+-")
		if d.digits() == 0 {
			return "", false
		}
	}
	return json.Number(d.data[begin:d.at]), true
}

// skipOne skips the next byte if it is one of the given ones, and returns whether it was.
func (d *decoder) skipOne(of string) bool {
	if d.at == len(d.data) || strings.IndexByte(of, d.data[d.at]) < 0 {
		return false
	}
	d.at++
	return true
}

// digits skips digits, and returns their number.
func (d *decoder) digits() int {
	begin := d.at
	for d.at < len(d.data) && d.data[d.at] >= '0' && d.data[d.at] <= '9' {
		d.at++
	}
	return d.at - begin
}

// object reads an object. The last of several members with one name counts.
func (d *decoder) object(depth int) (any, bool) {
	members := map[string]any{}
	d.at++ // the brace
	if d.take('}') {
		return members, true
	}
	for {
		if d.next() != '"' {
			return nil, false
		}
		name, ok := d.text()
		if !ok || !d.take(':') {
			return nil, false
		}
		if members[name], ok = d.value(depth + 1); !ok {
			return nil, false
		}
		if d.take('}') {
			return members, true
		}
		if !d.take(',') {
			return nil, false
		}
	}
}

// array reads an array.
func (d *decoder) array(depth int) (any, bool) {
	elements := []any{}
	d.at++ // the bracket
	if d.take(']') {
		return elements, true
	}
	for {
		v, ok := d.value(depth + 1)
		if !ok {
			return nil, false
		}
		elements = append(elements, v)
		if d.take(']') {
			return elements, true
		}
		if !d.take(',') {
			return nil, false
		}
	}
}

// text reads a string, whose quote is the next byte.
func (d *decoder) text() (string, bool) {
	begin, isPlain := d.at, true
	for d.at++; d.at < len(d.data); d.at++ {
		switch c := d.data[d.at]; {
		case c == '"':
			d.at++
			if isPlain {
				return string(d.data[begin+1 : d.at-1]), true
			}
			var v string
			err := json.Unmarshal(d.data[begin:d.at], &v)
			return v, err == nil
		case c == '\\':
			isPlain = false
			d.at++
		case c < ' ':
			return "", false
		case c >= utf8.RuneSelf:
			isPlain = false // it may not be UTF-8
		}
	}
	return "", false
}
