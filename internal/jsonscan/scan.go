// Package jsonscan reads and writes JSON whose form is known, without reflection.
//
// It is for documents that are decoded and encoded with each request: the lifecycle manager's
// statuses. A Scanner walks through JSON that was valid when it was stored; it reports malformed
// input as an error, but it accepts some input that is not JSON. Code that reads a client's input
// uses encoding/json instead. The package imports nothing of Atoll.
package jsonscan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// ErrMalformed means that the input is not JSON, or has another form than the caller reads.
var ErrMalformed = errors.New("malformed JSON")

// Scanner reads one value after the other. After an error all methods return zero values, and Err
// returns the first error. One goroutine may use it.
type Scanner struct {
	data []byte
	at   int
	err  error
}

// New returns a Scanner of data, which must not change while values of it are used.
func New(data []byte) *Scanner { return &Scanner{data: data} }

// Err returns the first error.
func (s *Scanner) Err() error { return s.err }

// fail records the first error and moves to the end of the input.
func (s *Scanner) fail() {
	if s.err == nil {
		s.err = fmt.Errorf("%w at byte %d", ErrMalformed, s.at)
	}
	s.at = len(s.data)
}

// peek returns the next byte that is not white space, 0 at the end.
func (s *Scanner) peek() byte {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; c {
		case ' ', '\n', '\t', '\r':
		default:
			return c
		}
	}
	return 0
}

// expect skips white space and one byte c, or fails.
func (s *Scanner) expect(c byte) {
	if s.peek() != c {
		s.fail()
		return
	}
	s.at++
}

// Null skips null and returns true, or returns false and reads nothing.
func (s *Scanner) Null() bool {
	if s.peek() == 'n' {
		s.literal()
		return true
	}
	return false
}

// Object calls member with the key of each member; member must read the member's value. Null has no
// members.
func (s *Scanner) Object(member func(key string)) {
	if s.Null() {
		return
	}
	s.expect('{')
	if s.peek() == '}' {
		s.at++
		return
	}
	for s.err == nil {
		key := s.String()
		s.expect(':')
		member(key)
		if s.peek() != ',' {
			break
		}
		s.at++
	}
	s.expect('}')
}

// Array calls element for each element; element must read it. Null has no elements.
func (s *Scanner) Array(element func()) {
	if s.Null() {
		return
	}
	s.expect('[')
	if s.peek() == ']' {
		s.at++
		return
	}
	for s.err == nil {
		element()
		if s.peek() != ',' {
			break
		}
		s.at++
	}
	s.expect(']')
}

// token returns the next string with its quotes, and whether it has escapes.
func (s *Scanner) token() (text []byte, escaped bool) {
	s.expect('"')
	if s.err != nil {
		return nil, false
	}
	begin := s.at - 1
	for ; s.at < len(s.data); s.at++ {
		switch s.data[s.at] {
		case '\\':
			escaped = true
			s.at++
		case '"':
			s.at++
			return s.data[begin:s.at], escaped
		}
	}
	s.fail()
	return nil, false
}

// String reads a string; null is "".
func (s *Scanner) String() string {
	if s.Null() {
		return ""
	}
	text, escaped := s.token()
	if len(text) < 2 {
		return ""
	}
	if !escaped {
		return string(text[1 : len(text)-1])
	}
	var v string
	if err := json.Unmarshal(text, &v); err != nil {
		s.fail()
	}
	return v
}

// literal reads a number, true, false or null.
func (s *Scanner) literal() []byte {
	s.peek()
	begin := s.at
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ',', ']', '}', ':', ' ', '\n', '\t', '\r', '"', '[', '{':
			goto end
		}
		s.at++
	}
end:
	if begin == s.at {
		s.fail()
	}
	return s.data[begin:s.at]
}

// Bool reads true or false.
func (s *Scanner) Bool() bool {
	switch string(s.literal()) {
	case "true":
		return true
	case "false":
	default:
		s.fail()
	}
	return false
}

// Int reads a whole number; null is 0.
func (s *Scanner) Int() int64 {
	if s.Null() {
		return 0
	}
	n, err := strconv.ParseInt(string(s.literal()), 10, 64)
	if err != nil {
		s.fail()
	}
	return n
}

// Time reads a time as RFC 3339 has it; null is zero.
func (s *Scanner) Time() (t time.Time) {
	if s.Null() {
		return t
	}
	text, _ := s.token()
	if len(text) < 2 || t.UnmarshalText(text[1:len(text)-1]) != nil {
		s.fail()
	}
	return t
}

// Raw reads any value and returns its text, which shares memory with the input.
func (s *Scanner) Raw() json.RawMessage {
	s.peek()
	begin := s.at
	if s.Skip(); s.err != nil {
		return nil
	}
	return s.data[begin:s.at:s.at]
}

// Skip reads any value.
func (s *Scanner) Skip() {
	depth := 0
	for s.err == nil {
		switch s.peek() {
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case '"':
			s.token()
		case ',', ':':
			if depth == 0 {
				s.fail()
				return
			}
			s.at++
		default:
			s.literal()
		}
		if depth == 0 {
			return
		}
		if depth < 0 {
			s.fail()
		}
	}
}

// Next returns the first byte of the next value, 0 at the end, and reads nothing.
func (s *Scanner) Next() byte { return s.peek() }

// Offset returns where in the input the next value begins, and reads nothing.
func (s *Scanner) Offset() int {
	s.peek()
	return s.at
}

// Position returns where in the input the last value ended.
func (s *Scanner) Position() int { return s.at }

// Text reads a string and returns its bytes, which may share memory with the input.
func (s *Scanner) Text() []byte {
	text, escaped := s.token()
	if len(text) < 2 {
		return nil
	}
	if !escaped {
		return text[1 : len(text)-1]
	}
	var v string
	if err := json.Unmarshal(text, &v); err != nil {
		s.fail()
	}
	return []byte(v)
}

// Float reads a number.
func (s *Scanner) Float() float64 {
	n, err := strconv.ParseFloat(string(s.literal()), 64)
	if err != nil {
		s.fail()
	}
	return n
}

// Value reads any value and returns it as encoding/json decodes it into any.
func (s *Scanner) Value() any {
	switch s.peek() {
	case '{':
		object := map[string]any{}
		s.Object(func(key string) { object[key] = s.Value() })
		return object
	case '[':
		list := []any{}
		s.Array(func() { list = append(list, s.Value()) })
		return list
	case '"':
		return s.String()
	case 't', 'f':
		return s.Bool()
	case 'n':
		s.Null()
		return nil
	}
	return s.Float()
}

// End reports an error when anything but white space follows.
func (s *Scanner) End() error {
	if s.peek() != 0 {
		s.fail()
	}
	return s.err
}

// AppendString appends a JSON string.
func AppendString(b []byte, v string) []byte {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			text, _ := json.Marshal(v) // of a string there is no error
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, v...)
	return append(b, '"')
}

// AppendTime appends a time as encoding/json does.
func AppendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}
