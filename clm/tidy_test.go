package clm

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// The jobs of tidy read old records and resources that are being deleted, and no others, however many there are.
func TestTidyReadsNoLivingResources(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	a, _ := startAs(t, dsn, testEntities, func(*Options) {})
	a.do("POST", "/clusters", `{"kind":"Cluster","name":"first","spec":{}}`).want(201)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	const resources = 10_000
	for _, sql := range []string{
		`insert into document (kind, id, scope, name, version, generation, spec, status, head, wire, created_at, updated_at, token)
			select kind, 'c' || n, scope, 'c' || n, 1, 1, spec, status, head, wire, created_at, updated_at, n
			from document, generate_series(1, 10000) n where kind = 'Cluster'`,
		"vacuum analyze document, feed",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	// The list of finishDeletions, as the store makes it.
	rows, err := tx.Query(ctx, `select d.id from document d where d.kind in ('Cluster') and d.removed_at is null
		and d.deleted_at is not null and (d.deleted_at < now()) order by (d.id) asc limit 101`)
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	var read int
	err = tx.QueryRow(ctx, `select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int
		from pg_stat_xact_user_tables where relname = 'document'`).Scan(&read)
	if err != nil {
		t.Fatal(err)
	}
	if read > 10 {
		t.Errorf("the search for deleted resources reads %d of %d resources", read, resources)
	}
}
