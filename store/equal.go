package store

import (
	"fmt"

	"atoll.dev/internal/jsonvalue"
)

// SameJSON reports whether PostgreSQL's jsonb would be equal for a and b: white space, the order of
// keys, earlier duplicates of keys and the notation of numbers do not matter. Malformed JSON is
// ErrInvalid.
func SameJSON(a, b []byte) (bool, error) {
	equal, err := jsonvalue.EqualTexts(a, b)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return equal, nil
}
