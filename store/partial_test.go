package store

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// headed is a kind whose wire form is stored in two parts.
func headed() KindSpec {
	tail := func(d Document) ([]byte, error) { return fmt.Appendf(nil, `,"status":%s}`, d.Status), nil }
	return KindSpec{Kind: "A", History: true,
		Render: func(d Document) ([]byte, error) {
			rest, err := tail(d)
			return append(fmt.Appendf(nil, `{"spec":%s`, d.Spec), rest...), err
		},
		Head: func(wire []byte) int { return bytes.Index(wire, []byte(`,"status"`)) },
		Tail: tail,
	}
}

// A change of the status from a partial document stores what a change from a whole one does. A change that needs more
// gets the whole document.
func TestI2APartialDocumentIsChangedAsAWholeOne(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{headed()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.GetStatus(ctx, "A", "1"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("GetStatus of no document: %v", err)
	}
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Scope: "s", Name: "n", Spec: []byte(`{"n": 1}`),
		Status: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
	partial := func() Document {
		t.Helper()
		d, err := s.GetStatus(ctx, "A", "1")
		whole, err2 := s.Get(ctx, "A", "1")
		if err != nil || err2 != nil || !d.IsPartial() || whole.IsPartial() || d.Spec != nil ||
			string(d.Status) != string(whole.Status) || string(d.Wire) != fmt.Sprintf(`,"status":%s}`, d.Status) ||
			!d.SameState(whole) || d.Scope != "s" || d.Name != "n" || d.Generation != whole.Generation ||
			!d.CreatedAt.Equal(whole.CreatedAt) || !d.UpdatedAt.Equal(whole.UpdatedAt) {
			t.Fatalf("GetStatus: %+v, %v; Get: %+v, %v", d, err, whole, err2)
		}
		return d
	}
	check := func(version int64, wire string) {
		t.Helper()
		d, err := s.Get(ctx, "A", "1")
		if err != nil || d.Version != version || string(d.Wire) != wire {
			t.Fatalf("version %d, %s, %v; want %d, %s", d.Version, d.Wire, err, version, wire)
		}
	}
	set := func(status string) func(*Document) error {
		return func(d *Document) error { d.Status = []byte(status); return nil }
	}
	stale := partial()
	d, changed, err := s.UpdateFrom(ctx, stale, set("2"))
	if err != nil || !changed || !d.IsPartial() || d.Version != 2 {
		t.Fatalf("%+v, %v, %v", d, changed, err)
	}
	check(2, `{"spec":{"n": 1},"status":2}`)
	if d, _, err = s.UpdateFrom(ctx, d, set("3")); err != nil || !d.IsPartial() {
		t.Fatalf("a change of the changed document: %+v, %v", d, err)
	}
	check(3, `{"spec":{"n": 1},"status":3}`)
	if d, _, err = s.UpdateFrom(ctx, stale, set("4")); err != nil || d.IsPartial() {
		t.Fatalf("a change of an old document: %+v, %v", d, err)
	}
	check(4, `{"spec":{"n": 1},"status":4}`)

	var got []string
	if _, changed, err = s.UpdateFrom(ctx, partial(), func(d *Document) error {
		got = append(got, string(d.Spec))
		d.Spec = []byte(`{"n": 2}`)
		return nil
	}); err != nil || !changed || fmt.Sprint(got) != `[ {"n": 1}]` {
		t.Fatalf("a change of the spec: %v, %v, with the specs %q", changed, err, got)
	}
	check(5, `{"spec":{"n": 2},"status":4}`)
	audited := WithActor(ctx, Actor{Principal: "olga", Audit: `{}`})
	if _, changed, err = s.UpdateFrom(audited, partial(), set("5")); err != nil || !changed {
		t.Fatalf("an audited change: %v, %v", changed, err)
	}
	check(6, `{"spec":{"n": 2},"status":5}`)
	d = partial()
	if _, _, err = s.Update(ctx, "A", "1", 0, func(whole *Document) error { *whole = d; return nil }); !errors.Is(err,
		ErrInvalid) {
		t.Fatalf("a partial document in the place of a whole one: %v", err)
	}

	// The statement of a release that knows no head.
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `update document set version = 7, spec = '{"n": 3}', status = '6', token = 7,
		wire = $1, xid = pg_current_xact_id() where id = '1'`, []byte(`{"spec":{"n": 3},"status":6}`)); err != nil {
		t.Fatal(err)
	}
	if d, err = s.GetStatus(ctx, "A", "1"); err != nil || d.IsPartial() || string(d.Spec) != `{"n": 3}` {
		t.Fatalf("GetStatus of a document in one part: %+v, %v", d, err)
	}
	if _, _, err = s.UpdateFrom(ctx, d, set("7")); err != nil {
		t.Fatal(err)
	}
	check(8, `{"spec":{"n": 3},"status":7}`)
	if err := s.Remove(ctx, "A", "1", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetStatus(ctx, "A", "1"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("GetStatus of a removed document: %v", err)
	}
}
