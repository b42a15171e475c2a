package store_test

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/postgres"
	"atoll.dev/store"

	"github.com/jackc/pgx/v5"
)

// program runs pg_dump or psql of the server under test and returns its output.
func program(t testing.TB, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	b, err := postgres.Find()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(b.Path(name), args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, &stderr)
	}
	return out
}

func consumeTransactionIDs(t testing.TB, dsn string, n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for range n {
		if _, err := conn.Exec(t.Context(), "select pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
	}
}

// After a restore, older cursors get ErrGone, followers without a cursor list again, and followers
// see later writes, although the transaction ids in the dump are unrelated to those of this server.
func TestI4ARestoreFromADumpGivesGone(t *testing.T) {
	for where, restore := range map[string]func(t *testing.T, dsn string) (restored string){
		"the same database, dropped and made again": func(t *testing.T, dsn string) string {
			dump := program(t, nil, "pg_dump", dsn)
			name := strings.TrimPrefix(must[*url.URL](t)(url.Parse(dsn)).Path, "/")
			admin := strings.Replace(dsn, "/"+name+"?", "/postgres?", 1)
			program(t, []byte("drop database "+name+" with (force);\ncreate database "+name+" template template0;\n"),
				"psql", "-v", "ON_ERROR_STOP=1", admin)
			program(t, dump, "psql", "-v", "ON_ERROR_STOP=1", dsn)
			return dsn
		},
		"the same database, its tables replaced": func(t *testing.T, dsn string) string {
			dump := program(t, nil, "pg_dump", "--clean", dsn)
			program(t, dump, "psql", "-v", "ON_ERROR_STOP=1", "--single-transaction", dsn)
			return dsn
		},
		"the same tables, their rows replaced": func(t *testing.T, dsn string) string {
			dump := program(t, nil, "pg_dump", "--data-only", dsn)
			clear := "delete from document; delete from history; delete from follower; delete from store_meta; " +
				"delete from schema_version;\n"
			program(t, append([]byte(clear), dump...), "psql", "-v", "ON_ERROR_STOP=1", "--single-transaction", dsn)
			return dsn
		},
		"another database of the server": func(t *testing.T, dsn string) string {
			other := pgtest.DSN(t)
			program(t, program(t, nil, "pg_dump", dsn), "psql", "-v", "ON_ERROR_STOP=1", other)
			return other
		},
		"another server, far behind": func(t *testing.T, dsn string) string {
			server := pgtest.StartServer(t)
			other := pgtest.NewDatabase(t, server.Cluster)
			program(t, program(t, nil, "pg_dump", dsn), "psql", "-v", "ON_ERROR_STOP=1", other)
			return other
		},
	} {
		t.Run(where, func(t *testing.T) {
			dsn, ctx := pgtest.DSN(t), t.Context()
			s := open(t, dsn)
			consumeTransactionIDs(t, dsn, 1000)
			for _, n := range []string{"kept", "removed"} {
				must[store.Document](t)(s.Create(ctx, doc("Bundle", n, n, `{}`)))
			}
			if err := s.Remove(ctx, "Bundle", "removed", 0); err != nil {
				t.Fatal(err)
			}
			w := follow(t, s, store.FollowOptions{})
			w.has("Bundle/kept", 1)
			w.strict = false
			page := must[store.Page](t)(s.List(ctx, store.Query{Kind: "Bundle"}))
			durable := follow(t, s, store.FollowOptions{Name: "durable"})
			durable.has("Bundle/kept", 1)
			durable.halt()

			restored := restore(t, dsn)
			s2 := open(t, restored)
			must[store.Document](t)(s2.Create(ctx, doc("Bundle", "new", "new", `{}`)))
			gone := follow(t, s2, store.FollowOptions{From: page.Cursor})
			<-gone.done
			if !errors.Is(gone.err, store.ErrGone) {
				t.Fatal(gone.err)
			}
			again := follow(t, s2, store.FollowOptions{Name: "durable"})
			again.has("Bundle/new", 1)
			again.has("Bundle/kept", 1)
			if again.relists != 1 {
				t.Fatalf("%d relists", again.relists)
			}
			if _, _, err := s2.Update(ctx, "Bundle", "kept", 1, spec(`{"a":1}`)); err != nil {
				t.Fatal(err)
			}
			again.has("Bundle/kept", 2)
			if restored == dsn { // the follower that lived through it
				w.has("Bundle/new", 1)
				w.has("Bundle/kept", 2)
			}
			// A second Open finds nothing to do.
			page = must[store.Page](t)(s2.List(ctx, store.Query{Kind: "Bundle"}))
			s3 := open(t, restored)
			must[store.Document](t)(s3.Create(ctx, doc("Bundle", "last", "last", `{}`)))
			on := follow(t, s3, store.FollowOptions{From: page.Cursor})
			on.has("Bundle/last", 1)
		})
	}
}

func TestAMalformedCursorIsInvalidAndAFutureOneIsGone(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	page := must[store.Page](t)(s.List(t.Context(), store.Query{Kind: "Plain"}))
	incarnation, _, _ := strings.Cut(string(page.Cursor), ".")
	for cursor, want := range map[store.Cursor]error{
		"nonsense":                                          store.ErrInvalid,
		store.Cursor(incarnation + ".1:2"):                  store.ErrInvalid,
		store.Cursor(incarnation + ".9:5:"):                 store.ErrInvalid,
		store.Cursor(incarnation + ".5:9:7,6"):              store.ErrInvalid,
		store.Cursor(incarnation + ".999999999:999999999:"): store.ErrGone,
		"0123." + page.Cursor[len(incarnation)+1:]:          store.ErrGone,
	} {
		err := s.Follow(t.Context(), store.FollowOptions{From: cursor}, func(context.Context, store.Batch) error {
			return errors.New("it came")
		})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", cursor, err)
		}
	}
}
