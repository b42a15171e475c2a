package store

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"

	"github.com/jackc/pgx/v5"
)

// The plan of the followers' connections reads only the changed rows of a large table, also while a
// transaction stays open and when one transaction wrote all rows.
func TestTheFeedReadsItsIndexOnly(t *testing.T) {
	ctx := t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{{Kind: "A"}, {Kind: "B"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	_, err = s.pool.Exec(
		ctx,
		`insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
		select 'A', i::text, '', '', 1, 1, '{}', '{}', '', now(), now(), 1 from generate_series(1, 20000) i`,
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(ctx, `analyze document`); err != nil {
		t.Fatal(err)
	}
	open, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback(context.Background())
	if _, err := open.Exec(
		ctx, `update document set version = 2, xid = pg_current_xact_id() where id = '1'`); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(ctx, Query{Kind: "A", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := s.Create(ctx, Document{Kind: "B", ID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	now, err := page.Cursor.position()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		prepare, execute string
		scan             string
		read             int // rows, by the scans of the index
	}{
		"changes": {`(text, text, xid8, xid8, xid8[], text[], text, xid8, xid8, text, text, bigint) as ` + changesSQL,
			fmt.Sprintf(`'%s', '%d', '%d', '{%s}', '{A,B}', null, '%d', '0', '', '', 100`, now.incarnation, now.xmin,
				now.xmax,
				strings.Trim(strings.Join(strings.Fields(fmt.Sprint(now.xip)), ","),
					"[]"), maxXID), "document_feed", 5},
		"everything": {`(text, text[], text, text, bigint) as ` + allDocumentsSQL, `'{A,B}', 'A', '500', 100`,
			"document_pkey", 100},
	} {
		err := s.followers.runOn(ctx, openedBefore{}, func(ctx context.Context, conn *pgx.Conn) error {
			if _, err := conn.Exec(ctx, "prepare "+what+" "+c.prepare); err != nil {
				return err
			}
			rows, err := conn.Query(ctx, "explain (analyze, costs off, timing off) execute "+what+" ('"+sessionOf(
				conn).identity+"', "+c.execute+")")
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			plan, read := strings.Join(lines, "\n"), 0
			for _, m := range regexp.MustCompile(`Index (?:Only )?Scan using `+c.scan+
				`.*actual rows=(\d+)`).FindAllStringSubmatch(plan, -1) {
				n, _ := strconv.Atoi(m[1])
				read += n
			}
			if read != c.read || strings.Contains(plan, "Rows Removed") {
				t.Errorf("%s reads %d rows:\n%s", what, read, plan)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
