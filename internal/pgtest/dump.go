package pgtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgsession"
)

// Dump returns all rows of all tables of a database as text, one a line, and every value of type bytea a second time,
// as text. Tests search it for secrets that a thief of a dump must not find.
func Dump(t testing.TB, dsn string) string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgsession.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var all strings.Builder
	read := func(sql string) []string {
		rows, err := conn.Query(ctx, sql)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return texts
	}
	print := func(texts []string) {
		for _, text := range texts {
			fmt.Fprintln(&all, text)
		}
	}
	for _, table := range read(`select oid::regclass::text from pg_class where relkind in ('r', 'm')
		and relnamespace::regnamespace::text not in ('pg_catalog', 'information_schema', 'pg_toast') order by 1`) {
		print(read("select to_jsonb(t)::text from " + table + " t"))
	}
	for _, column := range read(`select format('select encode(%I, ''escape'') from %s where %I is not null', attname,
		attrelid::regclass, attname) from pg_attribute a join pg_class c on c.oid = a.attrelid
		where c.relkind = 'r' and a.atttypid = 'bytea'::regtype and a.attnum > 0 and not a.attisdropped
		and c.relnamespace::regnamespace::text not in ('pg_catalog', 'information_schema') order by 1`) {
		print(read(column))
	}
	return all.String()
}
