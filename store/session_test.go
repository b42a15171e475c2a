package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// ownersSettings are the settings that the server's owner decides; decision 047 has the reasons.
var ownersSettings = []string{
	"jit_above_cost", "jit_inline_above_cost", "jit_optimize_above_cost",
	"parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size", "min_parallel_index_scan_size",
	"random_page_cost", "effective_cache_size", "work_mem",
}

// sessionSettings reads the settings that the hostile server changes, in each sort of session.
func sessionSettings(t *testing.T, dsn string) map[string]string {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A"}}, AcquireTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names := slices.DeleteFunc(slices.Collect(maps.Keys(pgtest.UnsuitableSettings())), func(name string) bool {
		return slices.Contains(ownersSettings, name)
	})
	got := map[string]string{}
	read := func(session string) func(context.Context, *pgx.Conn) error {
		return func(ctx context.Context, c *pgx.Conn) error {
			rows, err := c.Query(ctx, `select lower(name), setting from pg_settings where lower(name) = any($1)`, names)
			if err != nil {
				return err
			}
			var name, setting string
			n := 0
			_, err = pgx.ForEachRow(rows, []any{&name, &setting}, func() error {
				got[session+" "+name] = setting
				n++
				return nil
			})
			if n != len(names) {
				t.Errorf("%d settings of %d are known", n, len(names))
			}
			return err
		}
	}
	if err := s.read(t.Context(), s.pool, read("pool")); err != nil {
		t.Fatal(err)
	}
	if err := s.followers.runOn(t.Context(), openedBefore{}, read("feed")); err != nil {
		t.Fatal(err)
	}
	conn, err := s.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := read("single")(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return got
}

// A session has the same settings on a server with PostgreSQL's defaults and on a server with
// changed ones.
func TestASessionSetsTheRequiredSettings(t *testing.T) {
	want := sessionSettings(t, pgtest.DSN(t))
	hostile := pgtest.StartServer(t, pgtest.UnsuitableSettings())
	for name, got := range sessionSettings(t, pgtest.NewDatabase(t, hostile.Cluster)) {
		if got != want[name] {
			t.Errorf("%s is %q, want %q", name, got, want[name])
		}
	}
	for name, setting := range map[string]string{"pool jit": "off", "feed jit": "off", "single jit": "off",
		"feed plan_cache_mode": "force_generic_plan", "pool statement_timeout": "5000",
		"single statement_timeout": "0"} {
		if want[name] != setting {
			t.Errorf("%s is %q, want %q", name, want[name], setting)
		}
	}
}

// The feed reads changes without delay on a server that compiles every statement: none of its
// statements is compiled.
func TestTheFeedIsCheapOnAServerWithBadSettings(t *testing.T) {
	server := pgtest.StartServer(t, pgtest.UnsuitableSettings())
	dsn := pgtest.NewDatabase(t, server.Cluster)
	s, err := OpenPatiently(t.Context(), Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A", History: true}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	seen := make(chan Document, 100)
	following := make(chan error, 1)
	go func() {
		following <- s.Follow(ctx, FollowOptions{}, func(_ context.Context, b Batch) error {
			for _, d := range b.Documents {
				seen <- d
			}
			return nil
		})
	}()
	for i := range 20 {
		id := string(rune('a' + i))
		d, err := s.Create(ctx, Document{Kind: "A", ID: id, Spec: json.RawMessage(`{"text":"ä\\n"}`),
			Status: json.RawMessage(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-seen:
			if got.ID != id || string(got.Spec) != `{"text": "ä\\n"}` || !got.CreatedAt.Equal(d.CreatedAt) {
				t.Errorf("the feed brought %s %s of %v, want that of %v", got.ID, got.Spec, got.CreatedAt, d.CreatedAt)
			}
		case <-ctx.Done():
			t.Fatal("the feed has no change")
		}
	}
	page, err := s.List(ctx, Query{Kind: "A", Limit: 7, OrderBy: []Order{{Expr: "d.created_at", Type: "timestamptz",
		Desc: true}}})
	for n := len(page.Documents); err == nil && page.Next != ""; n += len(page.Documents) {
		page, err = s.List(ctx, Query{Kind: "A", Limit: 7, After: page.Next, Count: true,
			OrderBy: []Order{{Expr: "d.created_at", Type: "timestamptz", Desc: true}}})
		if err == nil && page.Next == "" && n+len(page.Documents) != 20 {
			t.Errorf("the pages have %d documents", n+len(page.Documents))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	// The plan of the feed as it is executed: not compiled and without parallel workers.
	err = s.followers.runOn(ctx, openedBefore{}, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, "explain (analyze, costs off) "+strings.NewReplacer("$1", "''", "$2", "'{A}'", "$3",
			"''", "$4", "''", "$5", "10").
			Replace(allDocumentsSQL))
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if plan := strings.Join(lines, "\n"); strings.Contains(plan, "JIT") || strings.Contains(plan, "Gather") ||
			plan == "" {
			t.Errorf("the feed's statement is compiled or parallel:\n%s", plan)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	<-following
}
