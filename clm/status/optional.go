package status

import "encoding/json"

// Text is a text that a reporter may leave out. A Text that was left out and an empty one differ: the
// API shows the empty one, as the original does. The zero value was left out. Values can be compared
// with ==.
type Text struct {
	text  string
	given bool
}

// Given returns a Text that was not left out.
func Given(text string) Text { return Text{text, true} }

// TextOf returns a Text that was left out if text is nil.
func TextOf(text *string) Text {
	if text == nil {
		return Text{}
	}
	return Given(*text)
}

// String returns the text, "" if it was left out.
func (t Text) String() string { return t.text }

// IsZero reports whether the text was left out.
func (t Text) IsZero() bool { return !t.given }

// MarshalJSON implements json.Marshaler: null if the text was left out.
func (t Text) MarshalJSON() ([]byte, error) {
	if !t.given {
		return []byte("null"), nil
	}
	return json.Marshal(t.text)
}

// UnmarshalJSON implements json.Unmarshaler: null is a text that was left out.
func (t *Text) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*t = TextOf(text)
	return nil
}
