package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"
)

func TestWhatIsPackedIsUnpacked(t *testing.T) {
	for n := range 4000 {
		text := []byte(strings.Repeat("condition ", n/10) + fmt.Sprint(n))
		packed := pack(text)
		if back, err := unpack(nil, packed); err != nil || !bytes.Equal(back, text) {
			t.Fatalf("%d bytes: %v", len(text), err)
		}
		if len(packed) > len(text)+1 {
			t.Fatalf("%d bytes became %d", len(text), len(packed))
		}
	}
	if _, err := unpack(nil, []byte{9, 1, 2}); !errors.Is(err, ErrNewer) {
		t.Errorf("an unknown form: %v", err)
	}
	if _, err := unpack(nil, []byte{packedDeflate, 1, 2}); err == nil {
		t.Error("what was cut was unpacked")
	}
}

// A kind says what its history keeps of a status; records without it, and from before, read as they were written.
func TestTheHistoryKeepsWhatTheKindRecords(t *testing.T) {
	ctx := t.Context()
	long := `{"changed":"` + strings.Repeat("x", 3000) + `"}`
	s, err := Open(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{
		{Kind: "A", History: true, Recorded: func(before, after Document) json.RawMessage {
			if string(before.Status) == string(after.Status) {
				t.Error("it was asked what did not change")
			}
			return json.RawMessage(long)
		}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Status: []byte(`{"n":0}`)}); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*Document) error{
		func(d *Document) error { d.Status = []byte(`{"n":1}`); return nil },
		func(d *Document) error { d.Spec = []byte(`{"n":1}`); return nil },
	} {
		if _, _, err := s.Update(ctx, "A", "1", 0, change); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.pool.Exec(
		ctx, `insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id, status, token)
		values (now(), 'update', 'A', '1', '', 9, 1, '', '', '', '{"old": true}', 1)`); err != nil {
		t.Fatal(err)
	}
	records, err := s.History(ctx, HistoryQuery{Kind: "A", ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, string(r.Status))
	}
	if want := []string{`{"old": true}`, "", long, `{"n":0}`}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the history has %s", got)
	}
}
