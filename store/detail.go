package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
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

// The numbers that jsonb stores have at most maxDigits digits before the point, and at most maxFraction behind it
// (PostgreSQL's type numeric). Exponents count, and no exponent may reach maxExponent.
const (
	maxDigits   = 131072
	maxFraction = 16383
	maxExponent = 1<<30 - 1
)

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
		case !quoted && c >= '0' && c <= '9':
			n := len(text[i:]) - len(bytes.TrimLeft(text[i:], "0123456789.eE+-"))
			if !isStorable(string(text[i : i+n])) {
				return fmt.Errorf("%w: a number is out of range", ErrInvalid)
			}
			i += n - 1
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

// isStorable reports whether jsonb stores a number, which has no sign.
func isStorable(number string) bool {
	exponent := 0
	if at := strings.IndexAny(number, "eE"); at >= 0 {
		var err error
		exponent, err = strconv.Atoi(number[at+1:])
		if err != nil || exponent >= maxExponent || exponent <= -maxExponent {
			return false
		}
		number = number[:at]
	}
	whole, fraction, _ := strings.Cut(number, ".")
	if len(fraction)-exponent > maxFraction {
		return false
	}
	digits := whole + fraction
	zeros := len(digits) - len(strings.TrimLeft(digits, "0"))
	return zeros == len(digits) || len(whole)-zeros+exponent <= maxDigits
}
