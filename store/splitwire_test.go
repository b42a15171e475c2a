package store

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// A process of the release before knows no column head: it writes the whole wire form into the column wire and leaves
// head as it is. This release must then read the wire form that the process wrote, and not two heads, and must not join
// the old head with a new tail at its next change of the status.
func TestAWireFormWrittenByTheReleaseBeforeIsReadWhole(t *testing.T) {
	tail := func(d Document) ([]byte, error) { return fmt.Appendf(nil, `,"status":%s}`, d.Status), nil }
	split := KindSpec{Kind: "A",
		Render: func(d Document) ([]byte, error) {
			rest, err := tail(d)
			return append(fmt.Appendf(nil, `{"spec":%s`, d.Spec), rest...), err
		},
		Head:   func(wire []byte) int { return bytes.Index(wire, []byte(`,"status"`)) },
		Tail:   tail,
		Facets: func(d Document) []string { return []string{"status=" + string(d.Status)} },
	}
	dsn, ctx := pgtest.DSN(t), t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{split}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Spec: []byte(`{"n":1}`), Status: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	check := func(want, facet string) {
		t.Helper()
		d, err := s.Get(ctx, "A", "1")
		if err != nil || string(d.Wire) != want {
			t.Errorf("Get: %s, %v, want %s", d.Wire, err, want)
		}
		if d, err = s.GetWire(ctx, "A", "1"); err != nil || string(d.Wire) != want {
			t.Errorf("GetWire: %s, %v, want %s", d.Wire, err, want)
		}
		page, err := s.List(ctx, Query{Kind: "A"})
		if err != nil || len(page.Documents) != 1 || string(page.Documents[0].Wire) != want {
			t.Errorf("List: %+v, %v, want %s", page.Documents, err, want)
		}
		all, err := s.followers.readAll(ctx, openedBefore{}, []string{"A"}, feedKey{}, 10)
		if err != nil || len(all.docs) != 1 || string(all.docs[0].Wire) != want {
			t.Errorf("the feed: %+v, %v, want %s", all.docs, err, want)
		}
		var facets []string
		if err := conn.QueryRow(ctx, `select facets from feed`).Scan(&facets); err != nil ||
			!slices.Equal(facets, []string{facet}) {
			t.Errorf("the feed has the facets %q, %v, want %q", facets, err, facet)
		}
	}
	setStatus := func(status string) {
		t.Helper()
		_, _, err := s.Update(ctx, "A", "1", 0, func(d *Document) error { d.Status = []byte(status); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	check(`{"spec":{"n":1},"status":1}`, "status=1")
	setStatus("2")
	check(`{"spec":{"n":1},"status":2}`, "status=2")

	// The statement of the release before, for a change of spec and status.
	if _, err := conn.Exec(ctx, `update document set version = 3, generation = 2, spec = coalesce($1::jsonb, spec),
		status = coalesce($2::jsonb, status), wire = $3, updated_at = now(), token = 7, deleted_at = null, removed_at = null,
		xid = pg_current_xact_id() where kind = 'A' and id = '1' and version = 2 and removed_at is null`,
		`{"n":2}`, `3`, []byte(`{"spec":{"n":2},"status":3}`)); err != nil {
		t.Fatal(err)
	}
	check(`{"spec":{"n":2},"status":3}`, "status=2") // of the facets it knows nothing
	if _, _, err := s.Update(
		ctx,
		"A",
		"1",
		0,
		func(d *Document) error { d.Spec = []byte(`{"n":3}`); return nil },
	); err != nil {
		t.Fatal(err)
	}
	check(`{"spec":{"n":3},"status":3}`, "status=3")
	setStatus("4")
	check(`{"spec":{"n":3},"status":4}`, "status=4")
}

// Documents that were stored in two parts by an earlier build of this release are read whole.
func TestSplitWireFormsWithoutAMarkGetOne(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	before := slices.Index(migrations, markSplitWire)
	steps := append([]string{`create table schema_version (part text primary key, version int not null)`,
		fmt.Sprintf(`insert into schema_version values ('store', %d), ('service', 0)`, before)}, migrations[:before]...)
	steps = append(steps, `insert into document
		(kind, id, scope, name, version, generation, spec, status, head, wire, created_at, updated_at, token)
		values ('A', 'split', '', '', 1, 1, '{}', '{}', 'head,', 'tail', now(), now(), 1),
			('A', 'whole', '', '', 1, 1, '{}', '{}', '', 'whole', now(), now(), 1)`)
	for _, step := range steps {
		if _, err := conn.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for id, want := range map[string]string{"split": "head,tail", "whole": "whole"} {
		if d, err := s.Get(ctx, "A", id); err != nil || string(d.Wire) != want {
			t.Errorf("%s: %q, %v", id, d.Wire, err)
		}
	}
}
