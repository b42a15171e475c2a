package rest

import (
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

// Causes of the errors that ReadJSON returns, for errors.Is, so that a service
// whose contract has other codes can tell them apart.
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

// maxDepth of nested JSON. Kubernetes' own documents need about 30.
const maxDepth = 256

// ReadJSON reads the request's body, at most limit bytes of it, as exactly one
// JSON value into v. Its errors are *Error with status 400, or 413 and
// ErrTooLarge, and say where the fault is.
//
// The content type is not looked at: curl -d says
// application/x-www-form-urlencoded. Unknown members are accepted. JSON that
// PostgreSQL could not store is refused here, before it becomes a 500: NUL and
// broken surrogates in strings, numbers beyond float64, invalid UTF-8, nesting
// deeper than 256.
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
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
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

// drainLimit is how much of a body that is refused is still taken.
const drainLimit = 32 << 20

// Drain takes the rest of a body that is refused, within reason: a client that
// is still sending when the connection ends, curl 7.88 over HTTP/2 among them,
// may miss the answer that says why.
func Drain(r *http.Request) {
	if r.Body != nil && r.Header.Get("Expect") == "" { // else the client waits for our word
		_, _ = io.CopyN(io.Discard, r.Body, drainLimit)
	}
}

// DecodeJSON is ReadJSON for bytes that are already here.
func DecodeJSON(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return Errorf(http.StatusBadRequest, CodeInvalid, "the request body is empty; send a JSON object").Because(
			ErrEmpty)
	}
	if err := storable(data); err != nil {
		return err
	}
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return malformed(data, int(e.Offset), "%s", e.Error())
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at := "the document"
		if e.Field != "" {
			at = e.Field
		}
		return malformed(data, int(e.Offset), "%s is a JSON %s where %s is expected", at, e.Value, e.Type).Because(
			ErrType)
	}
	return Errorf(http.StatusBadRequest, CodeInvalid, "the request body cannot be read: %s", err).Because(ErrMalformed)
}

func malformed(data []byte, offset int, format string, args ...any) *Error {
	line, col := position(data, offset)
	return Errorf(http.StatusBadRequest, CodeInvalid,
		"the request body is not what is expected here, at line %d column %d: %s",
		line, col, fmt.Sprintf(format, args...)).Because(ErrMalformed)
}

// position turns an offset, as encoding/json counts it, into line and column.
func position(data []byte, offset int) (line, col int) {
	before := data[:max(0, min(offset-1, len(data)))]
	line = bytes.Count(before, []byte("\n")) + 1
	return line, len(before) - bytes.LastIndexByte(before, '\n')
}

// storable refuses what is JSON to Go and an error to PostgreSQL. It looks at
// the raw text, since raw JSON is what gets stored; the grammar itself is left
// to encoding/json.
func storable(data []byte) error {
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
		return malformed(data, n+1, "invalid UTF-8")
	}
	depth := 0
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return malformed(data, i+1, "nested deeper than %d", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		case c == '"':
			end, err := storableString(data, i+1)
			if err != nil {
				return err
			}
			i = end
		case c == '-' || '0' <= c && c <= '9':
			end := i + 1
			for end < len(data) && numberByte(data[end]) {
				end++
			}
			if f, err := strconv.ParseFloat(string(data[i:end]), 64); err != nil && math.IsInf(f, 0) {
				return malformed(data, i+1, "the number is too large")
			}
			i = end - 1
		}
	}
	return nil
}

func numberByte(c byte) bool {
	return '0' <= c && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

// storableString checks the escapes of the string whose content starts at i,
// and returns the index of its closing quote.
func storableString(data []byte, i int) (int, error) {
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
				continue // encoding/json says so
			}
			at := i
			i += 4
			switch {
			case u == 0:
				return 0, malformed(data, at, `\u0000 cannot be stored`)
			case 0xd800 <= u && u < 0xdc00:
				low, ok := uint32(0), false
				if i+2 < len(data) && data[i+1] == '\\' && data[i+2] == 'u' {
					low, ok = hex4(data, i+3)
				}
				if !ok || low < 0xdc00 || low > 0xdfff {
					return 0, malformed(data, at, "a high surrogate without a low one")
				}
				i += 6
			case 0xdc00 <= u && u < 0xe000:
				return 0, malformed(data, at, "a low surrogate without a high one")
			}
		}
	}
	return i, nil
}

func hex4(data []byte, i int) (uint32, bool) {
	if i+4 > len(data) {
		return 0, false
	}
	u, err := strconv.ParseUint(string(data[i:i+4]), 16, 32)
	return uint32(u), err == nil
}

// WriteJSON answers with v. A json.RawMessage or []byte is taken for rendered
// JSON and sent as it is.
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
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("rendering an answer: %w", err)
		}
		body = buf.Bytes()
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		return fmt.Errorf("writing an answer: %w", err)
	}
	return nil
}
