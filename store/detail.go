package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// detailMark is the first member of the column status of a document whose other members are in the column detail.
const detailMark = `"+":1`

// printedMark is how PostgreSQL prints the beginning of such a status. jsonb has the shortest names first.
const printedMark = `{"+": 1, `

// splitStatus returns the contents of the columns status and detail for a status; nil for nil.
func (k *KindSpec) splitStatus(status json.RawMessage) (searched json.RawMessage, detail []byte, err error) {
	if k.Detail == nil || status == nil {
		return status, nil, nil
	}
	at := k.Detail(status)
	if at <= 1 {
		return status, nil, nil
	}
	text := status[at : len(status)-1]
	if err := checkText(text); err != nil {
		return nil, nil, err
	}
	searched = make(json.RawMessage, 0, len(detailMark)+at+3)
	searched = append(append(append(searched, '{'), detailMark...), ',')
	return append(append(searched, status[1:at]...), '}'), pack(text), nil
}

// joinStatus returns the status that the two columns have.
func joinStatus(searched []byte, detail unpackedText) json.RawMessage {
	if detail == nil || !bytes.HasPrefix(searched, []byte(printedMark)) {
		return searched
	}
	members := searched[len(printedMark) : len(searched)-1]
	status := append(make([]byte, 0, len(members)+len(detail)+2), '{')
	return append(append(append(status, members...), detail...), '}')
}

// unpackedText is the text of a column that has a packed one; nil of null.
type unpackedText []byte

// ScanBytes implements pgtype.BytesScanner.
func (t *unpackedText) ScanBytes(packed []byte) (err error) {
	*t = nil
	if packed != nil {
		*t, err = unpack(make([]byte, 0, 4*len(packed)), packed)
	}
	return err
}

// maxExponent is the largest exponent of a number that jsonb stores.
const maxExponent = 131071

// checkText returns ErrInvalid for JSON that jsonb refuses: bytes that are not UTF-8, a NUL character, half a surrogate
// pair, and a number out of range. A packed text does not pass through jsonb, and is refused for the same reasons.
func checkText(text []byte) error {
	if !utf8.Valid(text) {
		return fmt.Errorf("%w: it is not UTF-8", ErrInvalid)
	}
	quoted, high := false, false // high: half a surrogate pair was read
	for i := 0; i < len(text); i++ {
		c := text[i]
		escape := -1
		switch {
		case !quoted && (c == 'e' || c == 'E') && i > 0 && text[i-1] >= '0' && text[i-1] <= '9':
			end := i + 1
			for end < len(text) && bytes.IndexByte([]byte("+-0123456789"), text[end]) >= 0 {
				end++
			}
			if n, err := strconv.Atoi(string(text[i+1 : end])); err != nil || n > maxExponent || n < -maxExponent {
				return fmt.Errorf("%w: a number is out of range", ErrInvalid)
			}
		case quoted && c == '\\' && i+1 < len(text):
			i++
			if text[i] == 'u' && i+4 < len(text) {
				n, err := strconv.ParseUint(string(text[i+1:i+5]), 16, 16)
				if err != nil {
					return fmt.Errorf("%w: malformed escape", ErrInvalid)
				}
				escape, i = int(n), i+4
			}
		case c == '"':
			quoted = !quoted
		}
		switch low := escape >= 0xdc00 && escape <= 0xdfff; {
		case escape == 0:
			return fmt.Errorf("%w: it has a NUL character (\\u0000)", ErrInvalid)
		case high != low:
			return fmt.Errorf("%w: it has half a surrogate pair", ErrInvalid)
		default:
			high = escape >= 0xd800 && escape <= 0xdbff
		}
	}
	return nil
}
