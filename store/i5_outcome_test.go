package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"

	"github.com/jackc/pgx/v5"
)

// The answer to a commit is lost in each way, and the caller gets the true outcome. If the write
// did not happen the store repeats it, so the caller sees exactly one write.
func TestI5TheOutcomeOfAnUnansweredCommitIsDetermined(t *testing.T) {
	for _, how := range []fault{lostRequest, lostReply, lostBoth} {
		for _, kind := range []store.Kind{"Bundle", "Plain"} {
			t.Run(fmt.Sprintf("transaction/%d/%s", how, kind), func(t *testing.T) {
				var b breaker
				s := open(t, pgtest.DSN(t), b.use)
				t.Cleanup(leaked.close)
				w := follow(t, s, store.FollowOptions{})
				ran := 0
				b.arm("commit\x00", how) // the whole statement: sessions set settings with the word in their names
				err := s.Tx(t.Context(), func(tx *store.Tx) error {
					ran++
					_, err := tx.Create(t.Context(), doc(kind, "x", "x", `{}`))
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				<-b.wasHit()
				if how == lostReply && ran != 1 || how == lostRequest && ran != 2 {
					t.Fatalf("it ran %d times", ran)
				}
				w.has(string(kind)+"/x", 1)
			})
			t.Run(fmt.Sprintf("statement/%d/%s", how, kind), func(t *testing.T) {
				var b breaker
				s := open(t, pgtest.DSN(t), b.use)
				t.Cleanup(leaked.close)
				w := follow(t, s, store.FollowOptions{})
				b.arm("marker-1", how)
				d := must[store.Document](t)(s.Create(t.Context(), doc(kind, "x", "x", `{"a": "marker-1"}`)))
				<-b.wasHit()
				b.arm("marker-2", how)
				d, changed, err := s.Update(t.Context(), kind, "x", d.Version, spec(`{"a": "marker-2"}`))
				if err != nil || !changed || d.Version != 2 {
					t.Fatalf("%+v %v %v", d, changed, err)
				}
				<-b.wasHit()
				w.has(string(kind)+"/x", 2)
				if got := must[store.Document](t)(s.Get(t.Context(), kind, "x")); got.Version != 2 {
					t.Fatalf("%+v", got)
				}
			})
		}
	}
}

// The statement waits for a lock on the server when the connection breaks: it could still succeed
// after the caller got an error. The store ends it first.
func TestI5ARunningStatementIsEndedBeforeItsOutcomeIsRead(t *testing.T) {
	dsn := pgtest.DSN(t)
	var b breaker
	s, other := open(t, dsn, b.use), open(t, dsn)
	t.Cleanup(leaked.close)
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "x", "x", `{}`)))
	h := hold(t, other, func(tx *store.Tx) error {
		_, _, err := tx.Update(t.Context(), "Plain", "x", 0, func(d *store.Document) error {
			d.Status = json.RawMessage(
				`{"held":true}`)
			return nil
		})
		return err
	})
	b.arm("marker", lostBoth)
	result := make(chan error, 1)
	go func() {
		_, _, err := s.Update(context.Background(), "Plain", "x", 1, spec(`{"a":"marker"}`))
		result <- err
	}()
	<-b.wasHit()
	// The first sending is ended and judged; the second then waits for the same lock.
	waiting(t, dsn, 1)
	h.commit(t)
	if err := <-result; !errors.Is(err, store.ErrStale) {
		t.Fatal(err)
	}
	if d := must[store.Document](t)(s.Get(t.Context(), "Plain", "x")); d.Version != 2 || string(d.Spec) != "{}" {
		t.Fatalf("%+v", d)
	}
}

// If another writer has overwritten the document, and it has no history, the outcome stays unknown.
func TestI5AnUndecidableOutcomeIsReportedAsUnknown(t *testing.T) {
	for kind, want := range map[store.Kind]error{"Plain": store.ErrUnknownOutcome, "Bundle": nil} {
		dsn := pgtest.DSN(t)
		var b breaker
		other := open(t, dsn)
		s := open(t, dsn, b.use)
		t.Cleanup(leaked.close)
		d := must[store.Document](t)(s.Create(t.Context(), doc(kind, "x", "x", `{}`)))
		b.onHit(func() {
			if _, _, err := other.Update(context.Background(), kind, "x", 2, spec(`{"a": "later"}`)); err != nil {
				t.Error(err)
			}
		})
		b.arm("marker", lostReply)
		_, _, err := s.Update(t.Context(), kind, "x", d.Version, spec(`{"a": "marker"}`))
		if !errors.Is(err, want) {
			t.Fatalf("%s: %v", kind, err)
		}
	}
}

// waiting returns when n sessions of the database wait for a lock.
func waiting(t testing.TB, dsn string, n int) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for have := -1; have != n; {
		err := conn.QueryRow(
			ctx, `select count(*) from pg_stat_activity where datname = current_database() `+
				`and wait_event_type = 'Lock'`).Scan(&have)
		if err != nil {
			t.Fatal(err)
		}
	}
}
