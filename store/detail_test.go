package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// detailed is a kind with a member "more" that no search reads.
var detailed = KindSpec{Kind: "A", History: true,
	Detail:   func(status json.RawMessage) int { return bytes.Index(status, []byte(`,"more":`)) },
	Recorded: func(before, after Document) json.RawMessage { return after.Status },
	Observed: func(before, after json.RawMessage) bool { return bytes.Contains(after, []byte("later")) },
}

// All reads return the whole status, and PostgreSQL has only its searched part as JSON.
func TestTheDetailOfAStatusIsStoredPacked(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{detailed}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	check := func(want, searched string) {
		t.Helper()
		got := map[string]Document{}
		var err error
		if got["Get"], err = s.Get(ctx, "A", "1"); err != nil {
			t.Fatal(err)
		}
		if got["GetByName"], err = s.GetByName(ctx, "A", "", "one"); err != nil {
			t.Fatal(err)
		}
		page, err := s.List(ctx, Query{Kind: "A"})
		if err != nil || len(page.Documents) != 1 {
			t.Fatal(page, err)
		}
		got["List"] = page.Documents[0]
		err = s.Stream(ctx, Query{Kind: "A"}, func(Extent) error { return nil }, func(docs []Document) error {
			got["Stream"] = docs[0]
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.followers.readAll(ctx, openedBefore{}, []string{"A"}, feedKey{}, 10)
		if err != nil || len(all.docs) != 1 {
			t.Fatal(all, err)
		}
		got["the feed"] = all.docs[0]
		for read, d := range got {
			if equal, err := SameJSON(d.Status, json.RawMessage(want)); err != nil || !equal {
				t.Errorf("%s: %s, %v, want %s", read, d.Status, err, want)
			}
		}
		if page, err = s.List(ctx, Query{Kind: "A", WireOnly: true}); err != nil || len(page.Documents[0].Status) > 0 {
			t.Errorf("a list of wire forms: %s, %v", page.Documents[0].Status, err)
		}
		var stored string
		if err := s.pool.QueryRow(ctx, `select status::text from document`).Scan(&stored); err != nil || stored != searched {
			t.Errorf("PostgreSQL has %s, %v, want %s", stored, err, searched)
		}
	}
	update := func(f func(*Document)) {
		t.Helper()
		if _, _, err := s.Update(ctx, "A", "1", 0, func(d *Document) error { f(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	first := Document{Kind: "A", ID: "1", Name: "one", Status: []byte(`{"n":1,"more":{"a":"b"}}`)}
	if _, err := s.Create(ctx, first); err != nil {
		t.Fatal(err)
	}
	check(`{"n":1,"more":{"a":"b"}}`, `{"+": 1, "n": 1}`)
	update(func(d *Document) { d.Spec = []byte(`{"spec":1}`) })
	check(`{"n":1,"more":{"a":"b"}}`, `{"+": 1, "n": 1}`)
	update(func(d *Document) { d.Status = []byte(`{"n":2,"more":{"a":"c"}}`) })
	check(`{"n":2,"more":{"a":"c"}}`, `{"+": 1, "n": 2}`)
	update(func(d *Document) { d.Status = []byte(`{"n":2,"more":{"a":"later"}}`) })
	check(`{"n":2,"more":{"a":"later"}}`, `{"+": 1, "n": 2}`)
	update(func(d *Document) { d.Status = []byte(`{"n":3}`) })
	check(`{"n":3}`, `{"n": 3}`)
	update(func(d *Document) { d.Status = []byte(`{"n":4,"more":[]}`) })
	check(`{"n":4,"more":[]}`, `{"+": 1, "n": 4}`)

	records, err := s.History(ctx, HistoryQuery{Kind: "A", ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, string(r.Spec)+string(r.Status))
	}
	if want := []string{`{"n":4,"more":[]}`, `{"n":3}`, `{"n":2,"more":{"a":"c"}}`, `{"spec":1}`,
		`{}{"n":1,"more":{"a":"b"}}`}; !slices.Equal(got, want) {
		t.Errorf("the history has %q", got)
	}
}

// A process of the release before reads a status without its detail. It must not store a status beside a detail that
// does not belong to it; its other changes go through.
func TestAStatusOfTheReleaseBeforeDoesNotReplaceADetail(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{detailed}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Status: []byte(`{"n":1,"more":2}`)}); err != nil {
		t.Fatal(err)
	}
	const old = `update document set version = version + 1, spec = coalesce($1::jsonb, spec),
		status = coalesce($2::jsonb, status), token = 7, xid = pg_current_xact_id()`
	if _, err := s.pool.Exec(ctx, old, nil, `{"n":2}`); err == nil || !strings.Contains(err.Error(), "document_detail") {
		t.Errorf("the old statement stored a status: %v", err)
	}
	if _, err := s.pool.Exec(ctx, old, `{"changed":true}`, nil); err != nil {
		t.Errorf("the old statement stores no spec: %v", err)
	}
	if d, err := s.Get(ctx, "A", "1"); err != nil || string(d.Status) != `{"n": 1,"more":2}` {
		t.Errorf("%s, %v", d.Status, err)
	}
}

// A database of the release before keeps its statuses and records; the next change of a status splits it.
func TestStatusesOfTheReleaseBeforeAreReadWhole(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	before := slices.Index(migrations, statusDetail)
	steps := append([]string{`create table schema_version (part text primary key, version int not null)`,
		fmt.Sprintf(`insert into schema_version values ('store', %d), ('service', 0)`, before)}, migrations[:before]...)
	steps = append(steps, `insert into document
		(kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
		values ('A', '1', '', '', 1, 1, '{}', '{"n": 1, "more": {"a": "b"}}', '', now(), now(), 1)`,
		`insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id,
			spec, packed, token)
		values (now(), 'create', 'A', '1', '', 1, 1, '', '', '', '{"s": 1}', decode('00', 'hex') || '{"n": 1}', 1)`)
	for _, step := range steps {
		if _, err := conn.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{detailed}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := s.Get(ctx, "A", "1")
	if equal, _ := SameJSON(d.Status, json.RawMessage(`{"n":1,"more":{"a":"b"}}`)); err != nil || !equal {
		t.Errorf("%s, %v", d.Status, err)
	}
	records, err := s.History(ctx, HistoryQuery{Kind: "A", ID: "1"})
	if err != nil || len(records) != 1 || string(records[0].Spec)+string(records[0].Status) != `{"s": 1}{"n": 1}` {
		t.Errorf("%+v, %v", records, err)
	}
	if _, _, err := s.Update(ctx, "A", "1", 0, func(d *Document) error {
		d.Status = []byte(`{"n":2,"more":{"a":"c"}}`)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var stored string
	err = conn.QueryRow(ctx, `select status::text from document`).Scan(&stored)
	if err != nil || stored != `{"+": 1, "n": 2}` {
		t.Errorf("%s, %v", stored, err)
	}
}

// A detail is refused for the same text as JSON that PostgreSQL stores.
func TestADetailIsRefusedAsJSONIs(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, value := range []string{`"a"`, `"\u0000"`, `"\\u0000"`, `"\\\u0000"`, `"\ud800"`, `"\ud83d\ude00"`, `"\ude00"`,
		`"\ud83dx"`, `"\ud83d\n"`, `"\ud83d\ud83d"`, "\"\xff\"", `1e5`, `1e200000`, `"1e200000"`, `1E-200000`, `"é\u00e9"`,
		`["\ud83d","\ude00"]`, `{"e":"1e9999999","\u0000":1}`, `1e99999999999999999999`, `[-1.5e+3,2]`, `0.0`, `1e-16383`, `1e-16384`,
		`1.5e-16382`, `1.5e-16383`, `1e131071`, `1e131072`, `10e131071`, `12e131070`, `0.001e131074`, `0.001e131075`,
		`0e200000`, `0e-20000`, `0e2000000000`, `0.` + strings.Repeat("0", 16382) + "1",
		`0.` + strings.Repeat("0", 16383) + "1", `-1` + strings.Repeat("0", 131071), `1` + strings.Repeat("0", 131072)} {
		var text string
		refused := conn.QueryRow(t.Context(), `select $1::jsonb::text`, []byte(value)).Scan(&text) != nil
		_, _, err := detailed.splitStatus(json.RawMessage(`{"n":1,"more":` + value + `}`))
		if errors.Is(err, ErrInvalid) != refused {
			t.Errorf("%.40s (%d bytes): PostgreSQL refuses it: %v; splitStatus: %v", value, len(value), refused, err)
		}
	}
}
