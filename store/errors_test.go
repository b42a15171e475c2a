package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func TestUnstorableValuesAreInvalid(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "x", "x", `{}`)))
	for what, text := range map[string]string{
		"a NUL character":       `{"a": "x\u0000y"}`,
		"a NUL byte":            "{\"a\": \"x\x00y\"}",
		"half a surrogate pair": `{"a": "\ud800"}`,
		"no UTF-8":              "{\"a\": \"\xff\"}",
		"a number too large":    `{"a": 1e999999}`,
		"cut short":             `{"a": `,
		"two values":            `{} {}`,
		"empty":                 ``,
		"too deep":              strings.Repeat(`[`, 9999) + strings.Repeat(`]`, 9999),
	} {
		if _, _, err := s.Update(ctx, "Bundle", "x", 0, spec(text)); !errors.Is(err, store.ErrInvalid) {
			// PostgreSQL accepts nesting up to the depth of its stack.
			if what != "too deep" || err != nil {
				t.Errorf("update, %s: %v", what, err)
			}
		}
		if _, err := s.Create(ctx, doc("Bundle", "y", "y", text)); !errors.Is(err, store.ErrInvalid) &&
			what != "too deep" {
			t.Errorf("create, %s: %v", what, err)
		}
	}
	for what, d := range map[string]store.Document{
		"no id":           doc("Bundle", "", "n", `{}`),
		"NUL in the id":   doc("Bundle", "a\x00b", "n", `{}`),
		"NUL in the name": doc("Bundle", "n", "a\x00b", `{}`),
		"a huge name":     doc("Bundle", "n", huge(), `{}`),
		"an unknown kind": doc("Unknown", "n", "n", `{}`),
	} {
		if _, err := s.Create(ctx, d); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// huge does not compress, so it does not fit into an index.
func huge() string {
	var b strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&b, "%x", i*i*7919)
	}
	return b.String()
}

func TestADatabaseThatIsDownIsUnavailableWithinTwoSeconds(t *testing.T) {
	server := pgtest.StartServer(t)
	// Only AcquireTimeout and ResolveTimeout are short, so an answer by any other limit comes too late.
	const acquire = 1500 * time.Millisecond
	s, ctx := openImpatiently(t, pgtest.NewDatabase(t, server.Cluster), acquire, func(o *store.Options) {
		o.QueueTimeout, o.StatementTimeout, o.LockTimeout, o.IdleInTxTimeout = time.Hour, time.Hour, time.Hour, time.Hour
	}), t.Context()
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "x", "x", `{}`)))
	server.Kill()
	for what, op := range map[string]func() error{
		"get":    func() error { _, err := s.Get(ctx, "Bundle", "x"); return err },
		"list":   func() error { _, err := s.List(ctx, store.Query{Kind: "Bundle"}); return err },
		"create": func() error { _, err := s.Create(ctx, doc("Bundle", "y", "y", `{}`)); return err },
		"update": func() error { _, _, err := s.Update(ctx, "Bundle", "x", 0, spec(`{"a":1}`)); return err },
		"remove": func() error { return s.Remove(ctx, "Bundle", "x", 0) },
		"ping":   func() error { return s.Ping(ctx) },
		"tx": func() error {
			return s.Tx(ctx, func(tx *store.Tx) error { _, err := tx.Get(ctx, "Bundle", "x"); return err })
		},
		"open": func() error {
			_, err := store.Open(ctx, store.Options{DSN: server.DSN("postgres", "postgres")})
			return err
		},
	} {
		began := time.Now()
		err := op()
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
		// 2 s are promised; a busy machine adds seconds, and the other limits are hours.
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s took %v", what, took)
		}
	}
	server.Start()
	testsite.Eventually(t, "the store has connected again", func() error {
		_, err := s.Get(ctx, "Bundle", "x")
		return err
	})
}

func TestABusyPoolIsUnavailableNotAHang(t *testing.T) {
	s := openImpatiently(t, pgtest.DSN(t), 200*time.Millisecond, func(o *store.Options) { o.MaxConns = 1 })
	h := hold(t, s, create("Plain", "x"))
	if _, err := s.Get(t.Context(), "Plain", "x"); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	h.commit(t)
}

// limitSession sets a limit of PostgreSQL in the only session of a store's pool. An option with a limit of
// milliseconds would end the statements that connect and open the store, too.
func limitSession(t testing.TB, s *store.Store, setting string, limit time.Duration) {
	t.Helper()
	err := s.Read(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, fmt.Sprintf("set %s = %d", setting, limit.Milliseconds()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The options are the limits of the pool's sessions; the two tests after this one have shorter limits in theirs.
func TestTheOptionsLimitStatementsAndLocks(t *testing.T) {
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.StatementTimeout, o.LockTimeout = 67*time.Second, 61*time.Second
	})
	var statement, lock string
	err := s.Read(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "select current_setting('statement_timeout'), current_setting('lock_timeout')").Scan(
			&statement, &lock)
	})
	if err != nil || statement != "67s" || lock != "61s" {
		t.Errorf("a statement is limited to %s, the wait for a lock to %s, %v", statement, lock, err)
	}
}

func TestALongStatementTimesOut(t *testing.T) {
	s := open(t, pgtest.DSN(t), func(o *store.Options) { o.MaxConns = 1 })
	limitSession(t, s, "statement_timeout", 20*time.Millisecond)
	_, err := s.List(t.Context(), store.Query{Kind: "Plain", Where: store.Fragment{
		SQL: "(select pg_sleep(600) is null)"}})
	if !errors.Is(err, store.ErrTimeout) {
		t.Fatal(err)
	}
}

func TestALockThatIsHeldTooLongIsUnavailable(t *testing.T) {
	dsn := pgtest.DSN(t)
	s := open(t, dsn, func(o *store.Options) { o.MaxConns = 1 })
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "x", "x", `{}`)))
	h := hold(t, open(t, dsn), func(tx *store.Tx) error {
		_, err := tx.GetForUpdate(t.Context(), "Plain", "x")
		return err
	})
	limitSession(t, s, "lock_timeout", 20*time.Millisecond)
	if _, _, err := s.Update(t.Context(), "Plain", "x", 0, spec(`{"a":1}`)); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	h.commit(t)
}

func TestADowngradeIsRefused(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	newer := store.Options{DSN: dsn, Kinds: kinds, Migrations: []string{
		"create table side (a int)", "insert into side values (1); insert into side values (2)"}}
	for range 2 { // the second time there is nothing to do
		s, err := store.OpenPatiently(ctx, newer)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Tx(ctx, func(tx *store.Tx) error {
			var n int
			if err := tx.QueryRow(ctx, "select count(*) from side").Scan(&n); err != nil || n != 2 {
				return fmt.Errorf("%d %w", n, err)
			}
			return nil
		})
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	older := newer
	older.Migrations = newer.Migrations[:1]
	if _, err := store.OpenPatiently(ctx, older); !errors.Is(err, store.ErrNewer) {
		t.Fatal(err)
	}
}

func TestManyProcessesOpenAnEmptyDatabaseAtOnce(t *testing.T) {
	dsn := pgtest.DSN(t)
	opened := make(chan error, 8)
	for range 8 {
		go func() {
			s, err := store.OpenPatiently(t.Context(), store.Options{DSN: dsn, Kinds: []store.KindSpec{{Kind: "Bundle",
				Indexes: []store.Index{{Name: "labels", On: "gin ((spec->'labels') jsonb_path_ops)"}}}}})
			if err == nil {
				s.Close()
			}
			opened <- err
		}()
	}
	for range 8 {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
}

func TestDeadlockedTransactionsAreRetried(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t), func(o *store.Options) { o.LockTimeout = time.Minute }), t.Context()
	must[store.Document](t)(s.Create(ctx, doc("Plain", "a", "", `{}`)))
	must[store.Document](t)(s.Create(ctx, doc("Plain", "b", "", `{}`)))
	both := make(chan struct{})
	results := make(chan error, 2)
	first := make(chan struct{}, 2)
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		go func() {
			tries := 0
			results <- s.Tx(ctx, func(tx *store.Tx) error {
				tries++
				for i, id := range order {
					_, _, err := tx.Update(ctx, "Plain", id, 0, func(d *store.Document) error {
						d.Status = json.RawMessage(fmt.Sprintf(`{"by": %q}`, order[0]+id))
						return nil
					})
					if err != nil {
						return err
					}
					if i == 0 && tries == 1 {
						first <- struct{}{}
						<-both
					}
				}
				return nil
			})
		}()
	}
	<-first
	<-first
	close(both)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if d := must[store.Document](t)(s.Get(ctx, "Plain", "a")); d.Version != 3 {
		t.Fatal(d.Version)
	}
}

// See internal/postgres, Guard: near the end of the disk the server is read only.
func TestAFullDiskRefusesWritesAndKeepsReading(t *testing.T) {
	dsn := pgtest.DSN(t)
	writer := open(t, dsn)
	must[store.Document](t)(writer.Create(t.Context(), doc("Bundle", "x", "x", `{}`)))
	s := open(t, dsn+"&default_transaction_read_only=on")
	w := follow(t, s, store.FollowOptions{Name: "n"})
	w.has("Bundle/x", 1)
	must[store.Document](t)(s.Get(t.Context(), "Bundle", "x"))
	if p := must[store.Page](t)(s.List(t.Context(), store.Query{Kind: "Bundle"})); len(p.Documents) != 1 {
		t.Fatal(p)
	}
	_, createErr := s.Create(t.Context(), doc("Bundle", "y", "y", `{}`))
	_, _, updateErr := s.Update(t.Context(), "Bundle", "x", 0, spec(`{"a":1}`))
	for what, err := range map[string]error{
		"create": createErr, "update": updateErr, "remove": s.Remove(t.Context(), "Bundle", "x", 0),
		"tx": s.Tx(t.Context(), create("Bundle", "z")),
	} {
		if !errors.Is(err, store.ErrFull) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := writer.Update(t.Context(), "Bundle", "x", 0, spec(`{"b":1}`)); err != nil {
		t.Fatal(err)
	}
	w.has("Bundle/x", 2)
}
