package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"atoll.dev/internal/pgtest"
)

// A list of changes reads these and no other documents, page by page, however many documents there are.
func TestAListOfChangesReadsChangesOnly(t *testing.T) {
	ctx := t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{{Kind: "A"}, {Kind: "B"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, sql := range []string{`insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
		select 'A', 'old-' || i, '', '', 1, 1, '{}', '{}', '', now(), now(), 1 from generate_series(1, 20000) i`,
		`analyze document`, `analyze feed`} {
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	first, err := s.List(ctx, Query{Kind: "A", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 7 {
		id := fmt.Sprintf("new-%d", i)
		want = append(want, id)
		for _, kind := range []Kind{"A", "B"} {
			if _, err := s.Create(ctx, Document{Kind: kind, ID: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	q := Query{Kind: "A", ChangedSince: first.Cursor, Limit: 3}
	var got []string
	for {
		page, err := s.List(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Documents {
			got = append(got, d.ID)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the list has %v, want %v", got, want)
	}
	present, err := s.CurrentCursor(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for cursor, most := range map[Cursor]int{first.Cursor: 2 * (len(want) + 1), present: 2} {
		sql, args, err := Query{Kind: "A", ChangedSince: cursor, Limit: 1000}.buildSQL()
		if err != nil {
			t.Fatal(err)
		}
		if n := s.rowsRead(t, sql, args); n > most {
			t.Errorf("a list since %s reads %d documents and rows of the feed", cursor, n)
		}
	}
	for _, q := range []Query{{Count: true}, {Offset: 1}, {OrderBy: []Order{{Expr: "d.name", Type: "text"}}}} {
		q.Kind, q.ChangedSince = "A", present
		if _, err := s.List(ctx, q); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// rowsRead returns how many rows of the tables document and feed a statement reads, by PostgreSQL's count.
func (s *Store) rowsRead(t *testing.T, sql string, args []any) int {
	t.Helper()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	count := func() (n int) {
		t.Helper()
		const counted = `select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int
			from pg_stat_xact_user_tables where relname in ('document', 'feed')`
		if err := tx.QueryRow(t.Context(), counted).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	rows, err := tx.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return count() - before
}
