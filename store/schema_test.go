package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// A database of an earlier release opens, and its followers' cursors continue: no change is lost,
// and new ones reach the followers.
func TestADatabaseOfAnEarlierSchemaIsOpened(t *testing.T) {
	for have := 4; have < len(migrations); have++ {
		dsn, ctx := pgtest.DSN(t), t.Context()
		options := Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A", History: true}}}
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if err := identify(ctx, conn); err != nil {
			t.Fatal(err)
		}
		steps := append([]string{`create table schema_version (part text primary key, version int not null)`,
			fmt.Sprintf(`insert into schema_version values ('store', %d), ('service', 0)`, have)}, migrations[:have]...)
		steps = append(
			steps,
			`insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
			select 'A', n::text, '', 'name-' || n, 1, 1, '{"a": 1}', '{"b": [1, 2]}', 'wire', now(), now(), n from generate_series(1, 3000) n`,
			`insert into store_meta (incarnation, identity, filenode, stamp)
			values ('first', '`+sessionOf(conn).identity+`', pg_relation_filenode('document'), `+stampSQL+`)`,
		)
		for _, step := range steps {
			if _, err := conn.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%s: %v", step, err)
			}
		}
		var snapshot string
		if err := conn.QueryRow(ctx, `select pg_current_snapshot()::text`).Scan(&snapshot); err != nil {
			t.Fatal(err)
		}
		from, err := newPosition("first", snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(
			ctx, `update document set version = 2, xid = pg_current_xact_id() where id = '17'`); err != nil {
			t.Fatal(err)
		}

		s, err := OpenPatiently(ctx, options)
		if err != nil {
			t.Fatalf("from step %d: %v", have, err)
		}
		defer s.Close()
		if _, _, err := s.Update(ctx, "A", "18", 0, func(d *Document) error {
			d.Status = []byte(`{"b": [3]}`)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(ctx, Document{Kind: "A", ID: "new"}); err != nil {
			t.Fatal(err)
		}
		found, err := s.followers.readChanges(ctx, openedBefore{}, []string{"A"}, from, nil, feedKey{}, 100)
		if err != nil {
			t.Fatalf("from step %d: %v", have, err)
		}
		got := map[string]int64{}
		for _, d := range found.docs {
			got[d.ID] = d.Version
		}
		if len(found.docs) != 3 || got["17"] != 2 || got["18"] != 2 || got["new"] != 1 {
			t.Errorf("from step %d: the feed has %v", have, got)
		}
		d, err := s.Get(ctx, "A", "2999")
		if err != nil || string(d.Status) != `{"b": [1, 2]}` || string(d.Wire) != "wire" {
			t.Errorf("from step %d: %+v, %v", have, d, err)
		}
	}
}

// TestAMigrationThatWaitsForALockStopsNoWriter: a transaction that writes documents stays open while another process
// makes an index. The process waits for it, but other writers go on, and the index is made after its end.
func TestAMigrationThatWaitsForALockStopsNoWriter(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	// On a busy machine PostgreSQL ends waits late, so the writers wait longer than those of a service.
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A", History: true}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	blocker, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blocker.Exec(ctx, `delete from document where kind = 'A' and id = 'none'`); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		later, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A", History: true,
			Indexes: []Index{{Name: "age", On: "btree (created_at)"}}}}})
		if err == nil {
			later.Close()
		}
		opened <- err
	}()
	waits := func() (waits bool) {
		if err := s.pool.QueryRow(ctx, `select exists (select from pg_locks where not granted
			and relation = 'document'::regclass)`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	}
	for !waits() {
		select {
		case err := <-opened:
			t.Fatalf("the migration ended before the transaction: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	for n := range 3 {
		if _, err := s.Create(ctx, Document{Kind: "A", ID: fmt.Sprint(n)}); err != nil {
			t.Errorf("a creation beside the waiting migration: %v", err)
		}
	}
	if err := blocker.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	var exists bool
	if err := s.pool.QueryRow(ctx, `select to_regclass('"document_A_age"') is not null`).Scan(&exists); err != nil ||
		!exists {
		t.Errorf("the index exists: %t, %v", exists, err)
	}
}
