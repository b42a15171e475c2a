package status

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"atoll.dev/internal/jsonscan"
)

// What answers show of a stored report is the report without Recent, and with data even when there are none; also when
// PostgreSQL has stored the members in another order.
func TestAStoredReportIsShownWithoutBeingDecoded(t *testing.T) {
	at := time.Date(2026, 11, 28, 21, 30, 0, 123456000, time.UTC)
	for name, r := range map[string]Report{
		"the least": {Adapter: "a", CreatedAt: at, ObservedAt: at},
		"all": {Adapter: `a"b`, Generation: 7, Conditions: []Reported{
			{Type: "Available", Status: "True", Reason: Given("<Fine>"), Message: Given("line\n2 & \u2028"),
				LastTransitionTime: at}, {Type: "Applied", Status: "False", LastTransitionTime: at}},
			Data: json.RawMessage(`{"recent":[{"a":"]}\""}],"n":1.50}`), Metadata: json.RawMessage(`{"data":{}}`),
			CreatedAt: at, ObservedAt: at.Add(time.Second), ReceivedAt: &at, Recent: []Recent{{1, 2, 3}, {4}}},
	} {
		stored := r.Append(nil)
		want := r
		if want.Recent = nil; want.Data == nil {
			want.Data = json.RawMessage("{}")
		}
		if want.Conditions == nil {
			want.Conditions = []Reported{}
		}
		expected := decode(t, want)
		for order, text := range map[string][]byte{"as written": stored, "another": mustMarshal(t, decode(t, stored))} {
			s := jsonscan.New(text)
			shown := AppendShown(nil, s)
			if err := s.End(); err != nil {
				t.Fatal(err)
			}
			if got := decode(t, shown); !reflect.DeepEqual(got, expected) {
				t.Errorf("%s, order %s: %s\nwant %v", name, order, shown, expected)
			}
		}
	}
}

// decode returns JSON, or the JSON of a value, as maps and lists.
func decode(t *testing.T, v any) (decoded any) {
	t.Helper()
	text, isText := v.([]byte)
	if !isText {
		text = mustMarshal(t, v)
	}
	if err := json.Unmarshal(text, &decoded); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return decoded
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
