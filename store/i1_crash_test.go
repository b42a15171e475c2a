package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"

	"github.com/jackc/pgx/v5"
)

// The test kills the server several times under load. Acknowledged writes exist afterwards, and the
// surviving followers converge to the table: no change skipped, repeated or reverted. The load has
// transactions that roll back, because a crash makes the server assign their ids again.
func TestI1AKilledServerKeepsAcknowledgedWrites(t *testing.T) {
	server := pgtest.StartServer(t)
	dsn := pgtest.NewDatabase(t, server.Cluster)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s, other := open(t, dsn), open(t, dsn)
	near, far := follow(t, s, store.FollowOptions{}), follow(t, other, store.FollowOptions{Name: "far"})

	const writers, documents, rounds, acksPerRound = 8, 5, 4, 400
	acks := make(chan struct{}, 1<<16)
	acked := make([]map[string]int64, writers) // by writer: the acknowledged versions
	var group sync.WaitGroup
	for n := range writers {
		acked[n] = map[string]int64{}
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				kind := []store.Kind{"Bundle", "Plain"}[n%2]
				id := fmt.Sprint(n, "-", i%documents)
				var d store.Document
				var err error
				switch key := string(kind) + "/" + id; {
				case i%7 == 3:
					err = s.Tx(ctx, func(tx *store.Tx) error {
						if err := create("Plain", fmt.Sprint("never-", n, "-", i))(tx); err != nil {
							return err
						}
						return errRollback
					})
				case acked[n][key] == 0:
					if d, err = s.Create(ctx, doc(kind, id, id, `{}`)); errors.Is(err, store.ErrExists) {
						d, err = s.Get(ctx, kind, id) // the write succeeded after ErrUnknownOutcome
					}
				default:
					d, _, err = s.Update(ctx, kind, id, 0, spec(fmt.Sprintf(`{"by": %d, "i": %d}`, n, i)))
				}
				switch {
				case err == nil:
					acked[n][string(kind)+"/"+id] = d.Version
					acks <- struct{}{}
				case errors.Is(err, errRollback), errors.Is(err, store.ErrUnavailable),
					errors.Is(err, store.ErrUnknownOutcome), ctx.Err() != nil:
				default:
					t.Errorf("writing %s: %v", id, err)
				}
			}
		})
	}
	for range rounds {
		for range acksPerRound {
			<-acks
		}
		server.Kill()
		server.Start()
	}
	for range acksPerRound {
		<-acks
	}
	stop()
	group.Wait()

	rows := map[string]store.Document{}
	for _, k := range kinds {
		for _, d := range must[store.Page](t)(s.List(t.Context(), store.Query{Kind: k.Kind, Limit: 10000})).Documents {
			rows[string(d.Kind)+"/"+d.ID] = d
		}
	}
	for _, versions := range acked {
		for key, version := range versions {
			if rows[key].Version < version {
				t.Errorf("%s: version %d was acknowledged, %d is there", key, version, rows[key].Version)
			}
		}
	}
	for _, w := range []*watcher{near, far} {
		w.until("it has what the table has", func(docs map[string]store.Document) bool {
			if len(docs) != len(rows) {
				return false
			}
			for key, d := range rows {
				if docs[key].Version != d.Version || string(docs[key].Spec) != string(d.Spec) {
					return false
				}
			}
			return true
		})
		if w.relists != 1 {
			t.Errorf("%d relists", w.relists)
		}
	}
}

// A server that crashes before its WAL reaches the disk assigns the ids of rolled-back transactions
// again. A follower that has read past these ids must not skip the new transactions.
func TestI1ReusedTransactionIDsAfterACrashCountAsUnseen(t *testing.T) {
	// On a busy machine something else may flush the WAL first.
	for range 20 {
		if reusesTransactionIDs(t) {
			return
		}
	}
	t.Fatal("the server never gave out an id again: nothing is tested")
}

// reusesTransactionIDs crashes a server once, and reports whether that was a test.
func reusesTransactionIDs(t *testing.T) bool {
	server := pgtest.StartServer(t, map[string]string{"wal_writer_delay": "10s"}) // nothing but commits flushes the WAL
	dsn := pgtest.NewDatabase(t, server.Cluster)
	reads := make(chan struct{}, 1<<16)
	s := open(t, dsn, func(o *store.Options) {
		o.PollInterval = 5 * time.Millisecond
		o.Hooks.AfterChunk = func() { reads <- struct{}{} }
	})
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "x", "x", `{}`)))
	w := follow(t, s, store.FollowOptions{})
	w.has("Plain/x", 1)
	last := rollbacks(t, dsn, 200)
	for len(reads) > 0 {
		<-reads
	}
	for range 3 {
		<-reads // the follower's position is after the rollbacks now
	}
	server.Kill()
	server.Start()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var again uint64
	if err := conn.QueryRow(t.Context(), `select pg_current_xact_id()`).Scan(&again); err != nil {
		t.Fatal(err)
	}
	if again >= last {
		t.Logf("the server went on with %d after %d", again, last)
		return false
	}
	for i := range 20 {
		id := fmt.Sprint(i)
		if _, err := conn.Exec(t.Context(),
			`insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
			values ('Plain', $1, '', '', 1, 1, '{}', '{}', '', now(), now(), 1)`, id); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		w.has(fmt.Sprintf("Plain/%d", i), 1)
	}
	if w.relists != 1 {
		t.Fatalf("%d relists", w.relists)
	}
	return true
}

// rollbacks writes in n transactions, rolls them back, and returns the id of the last.
func rollbacks(t testing.TB, dsn string, n int) (xid uint64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for range n {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = tx.QueryRow(t.Context(), `update document set token = 0 returning xmin, pg_current_xact_id()`).Scan(
			nil, &xid)
		if err = errors.Join(err, tx.Rollback(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	return xid
}
