package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"unicode/utf8"
)

// Causes of the errors that ReadJSON returns. A service whose contract has other codes
// distinguishes them with errors.Is.
var (
	ErrTooLarge  = errors.New("body too large")
	ErrMalformed = errors.New("malformed JSON")
	ErrEmpty     = errors.New("empty body")
	ErrType      = fmt.Errorf("%w: a value of another type", ErrMalformed)
)

// Codes of the errors that this package makes itself.
const (
	CodeInvalid  = "invalid-request"
	CodeTooLarge = "body-too-large"
)

// maxDepth bounds the nesting of JSON. Kubernetes' own documents need about 30.
const maxDepth = 256

// ReadJSON reads the request's body, at most limit bytes of it, as exactly one
// JSON value into v. Its errors are *Error with status 400, or 413 and
// ErrTooLarge; their reason names line and column of the mistake.
//
// ReadJSON ignores the content type, because curl -d sends
// application/x-www-form-urlencoded. It accepts unknown members. It refuses JSON that
// PostgreSQL cannot store, which would become a 500 later: NUL and broken surrogates in
// strings, numbers beyond float64, invalid UTF-8, nesting deeper than 256.
func ReadJSON(r *http.Request, limit int64, v any) error {
	data, err := ReadBody(r, limit)
	if err != nil {
		return err
	}
	return DecodeJSON(data, v)
}

// ReadBody reads the request's body, at most limit bytes of it.
func ReadBody(r *http.Request, limit int64) ([]byte, error) {
	tooLarge := Errorf(http.StatusRequestEntityTooLarge, CodeTooLarge,
		"the request body is larger than %d bytes; send less", limit).Because(ErrTooLarge)
	if r.ContentLength > limit {
		Drain(r)
		return nil, tooLarge
	}
	if r.Body == nil {
		return nil, nil
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		// The client may announce a length that it does not send, so at most maxReserved bytes are reserved for it. The
		// last read of ReadFrom needs room, too.
		buf.Grow(int(min(r.ContentLength, maxReserved)) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	data := buf.Bytes()
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok || int64(len(data)) > limit {
		Drain(r)
		return nil, tooLarge
	}
	if err != nil {
		return nil, Errorf(http.StatusBadRequest, CodeInvalid, "the request body ended early; send it whole").Because(
			err)
	}
	return data, nil
}

// maxReserved bounds the memory that ReadBody reserves for a body before the body arrives.
const maxReserved = 64 << 10

// drainLimit is how many bytes of a refused body Drain reads.
const drainLimit = 32 << 20

// Drain reads and drops the rest of a refused body, up to drainLimit. Otherwise a client
// that is still sending when the connection closes, such as curl 7.88 over HTTP/2, may
// not receive the answer.
func Drain(r *http.Request) {
	if r.Body != nil && r.Header.Get("Expect") == "" { // a client with Expect waits before it sends the body
		_, _ = io.CopyN(io.Discard, r.Body, drainLimit)
	}
}

// DecodeJSON decodes the bytes of a body as ReadJSON does.
func DecodeJSON(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return Errorf(http.StatusBadRequest, CodeInvalid, "the request body is empty; send a JSON object").Because(
			ErrEmpty)
	}
	if err := CheckStorable(data); err != nil {
		return err
	}
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return malformedError(data, int(e.Offset), "%s", e.Error())
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at := "the document"
		if e.Field != "" {
			at = e.Field
		}
		return malformedError(data, int(e.Offset), "%s is a JSON %s where %s is expected", at, e.Value, e.Type).Because(
			ErrType)
	}
	return Errorf(http.StatusBadRequest, CodeInvalid, "the request body cannot be read: %s", err).Because(ErrMalformed)
}

// malformedError returns the error for a mistake at an offset of the body.
func malformedError(data []byte, offset int, format string, args ...any) *Error {
	line, col := position(data, offset)
	return Errorf(http.StatusBadRequest, CodeInvalid,
		"the request body is not what is expected here, at line %d column %d: %s",
		line, col, fmt.Sprintf(format, args...)).Because(ErrMalformed)
}

// position converts an offset, as encoding/json counts it, into line and column.
func position(data []byte, offset int) (line, col int) {
	before := data[:max(0, min(offset-1, len(data)))]
	line = bytes.Count(before, []byte("\n")) + 1
	return line, len(before) - bytes.LastIndexByte(before, '\n')
}

// CheckStorable returns an error for JSON that Go accepts and PostgreSQL refuses. It
// checks the raw text, because the database stores raw JSON. encoding/json checks the
// grammar.
func CheckStorable(data []byte) error {
	if !utf8.Valid(data) {
		n := 0
		for rest := data; len(rest) > 0; {
			r, size := utf8.DecodeRune(rest)
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
			rest = rest[size:]
		}
		return malformedError(data, n+1, "invalid UTF-8")
	}
	depth := 0
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return malformedError(data, i+1, "nested deeper than %d", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		case c == '"':
			end, err := checkString(data, i+1)
			if err != nil {
				return err
			}
			i = end
		case c == '-' || '0' <= c && c <= '9':
			end := i + 1
			for end < len(data) && isNumberByte(data[end]) {
				end++
			}
			if f, err := strconv.ParseFloat(string(data[i:end]), 64); err != nil && math.IsInf(f, 0) {
				return malformedError(data, i+1, "the number is too large")
			}
			i = end - 1
		}
	}
	return nil
}

func isNumberByte(c byte) bool {
	return '0' <= c && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

// checkString checks the escapes of the string whose content starts at i,
// and returns the index of its closing quote.
func checkString(data []byte, i int) (int, error) {
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			return i, nil
		case '\\':
			i++
			if i >= len(data) || data[i] != 'u' {
				continue
			}
			u, ok := hex4(data, i+1)
			if !ok {
				continue // encoding/json refuses the escape
			}
			at := i
			i += 4
			switch {
			case u == 0:
				return 0, malformedError(data, at, `\u0000 cannot be stored`)
			case 0xd800 <= u && u < 0xdc00:
				low, ok := uint32(0), false
				if i+2 < len(data) && data[i+1] == '\\' && data[i+2] == 'u' {
					low, ok = hex4(data, i+3)
				}
				if !ok || low < 0xdc00 || low > 0xdfff {
					return 0, malformedError(data, at, "a high surrogate without a low one")
				}
				i += 6
			case 0xdc00 <= u && u < 0xe000:
				return 0, malformedError(data, at, "a low surrogate without a high one")
			}
		}
	}
	return i, nil
}

// hex4 parses four hexadecimal digits at i; ok is false if there are no four.
func hex4(data []byte, i int) (uint32, bool) {
	if i+4 > len(data) {
		return 0, false
	}
	u, err := strconv.ParseUint(string(data[i:i+4]), 16, 32)
	return uint32(u), err == nil
}

// WriteJSON answers with v as JSON. It sends a json.RawMessage or []byte unchanged.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	return writeJSON(w, status, "", v)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) error {
	if contentType == "" {
		contentType = "application/json"
	}
	var body []byte
	switch v := v.(type) {
	case json.RawMessage:
		body = v
	case []byte:
		body = v
	default:
		var err error
		if body, err = MarshalJSON(v); err != nil {
			return err
		}
	}
	writeHeaders(w, status, contentType, len(body))
	if _, err := w.Write(body); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		return fmt.Errorf("writing an answer: %w", err)
	}
	return nil
}

// MarshalJSON returns the body with which WriteJSON answers.
func MarshalJSON(v any) (json.RawMessage, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("rendering an answer: %w", err)
	}
	return buf.Bytes(), nil
}

// WriteJSONParts answers with the JSON text that the parts make together. It copies them through a small buffer, so a
// long answer needs no memory for a copy of all of it.
func WriteJSONParts(w http.ResponseWriter, status int, parts [][]byte) error {
	length := 0
	for _, p := range parts {
		length += len(p)
	}
	writeHeaders(w, status, "application/json", length)
	// Not from a pool: HTTP/2 may still send from the buffer when the handler has returned.
	buf := bufio.NewWriterSize(w, min(length, partsBuffer))
	for _, p := range parts {
		_, _ = buf.Write(p) // Flush returns the error
	}
	if err := buf.Flush(); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		return fmt.Errorf("writing an answer: %w", err)
	}
	return nil
}

// partsBuffer is the size of the buffer of WriteJSONParts.
const partsBuffer = 64 << 10

// writeHeaders writes the status and headers of an answer of known length.
func writeHeaders(w http.ResponseWriter, status int, contentType string, length int) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(length))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
}
