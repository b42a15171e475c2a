package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// audited returns a context whose changes leave audit records.
func audited(t testing.TB) context.Context {
	return store.WithActor(t.Context(), store.Actor{Principal: "ann", Account: "1", RequestID: "r",
		Audit: `{"proof":"sigv4"}`})
}

// auditReader reads the audit records of a store from the beginning, in pages.
type auditReader struct {
	t      testing.TB
	store  *store.Store
	limit  int
	cursor string
	seen   map[string]int // records by id of their document
}

func readAudit(t testing.TB, s *store.Store, limit int) *auditReader {
	return &auditReader{t: t, store: s, limit: limit, seen: map[string]int{}}
}

// readPage reads one page, and reports whether it is the last one.
func (r *auditReader) readPage() bool {
	r.t.Helper()
	page, err := r.store.ListAudit(r.t.Context(), r.cursor, r.limit)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, record := range page.Records {
		r.seen[record.ID]++
	}
	r.cursor = page.Next
	return page.IsComplete
}

// readAll reads until there are no more records, and compares what it has read since the beginning.
func (r *auditReader) readAll(want ...string) {
	r.t.Helper()
	for !r.readPage() {
	}
	got := len(r.seen)
	for _, id := range want {
		if r.seen[id] != 1 {
			r.t.Fatalf("the record of %s was read %d times; read: %v", id, r.seen[id], r.seen)
		}
	}
	if got != len(want) {
		r.t.Fatalf("read %v, want %v", r.seen, want)
	}
}

// A transaction that commits late has its records between those that were read already. Readers in pages of each
// size read each record once all the same, also when it commits between two pages of one part; and what rolls back
// has none.
func TestI10AuditReadsLateCommitsOnce(t *testing.T) {
	dsn := pgtest.DSN(t)
	s := open(t, dsn)
	for _, limit := range []int{1, 2, 3, 100} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			prefix := fmt.Sprintf("p%d-", limit)
			var ids []string
			create := func(names ...string) {
				for _, name := range names {
					must[store.Document](t)(s.Create(audited(t), doc("Bundle", prefix+name, prefix+name, `{}`)))
					ids = append(ids, prefix+name)
				}
			}
			before := readAudit(t, s, 1000)
			for !before.readPage() {
			}
			r := readAudit(t, s, limit)
			r.cursor = before.cursor

			create("a")
			// begin holds a transaction open that has written; finish ends it with an error or nil.
			begin := func(name string) (finish func(error)) {
				written, end, done := make(chan struct{}), make(chan error), make(chan error, 1)
				go func() {
					done <- s.Tx(audited(t), func(tx *store.Tx) error {
						if _, err := tx.Create(audited(t), doc("Bundle", prefix+name, prefix+name, `{}`)); err != nil {
							return err
						}
						close(written)
						select {
						case err := <-end:
							return err
						case <-t.Context().Done(): // the test has failed
							return t.Context().Err()
						}
					})
				}()
				select {
				case <-written:
				case err := <-done:
					t.Fatal(err)
				}
				return func(err error) {
					end <- err
					if got := <-done; !errors.Is(got, err) {
						t.Errorf("the transaction ended with %v", got)
					}
				}
			}
			late, never := begin("late"), begin("never")
			create("b", "c", "d")
			r.readPage() // pages of 1 to 3 are within the part
			late(nil)
			ids = append(ids, prefix+"late")
			create("e")
			r.readAll(ids...)
			later := begin("later")
			create("f")
			r.readAll(ids...)
			never(errors.New("rolled back"))
			later(nil)
			ids = append(ids, prefix+"later")
			r.readAll(ids...)
			r.readAll(ids...) // nothing again
		})
	}
}

// A page that is full, with no record after it, does not end the feed: the next record comes.
func TestI10AuditGoesOnAfterAFullPage(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	cursor := ""
	for i, limit := range []int{2, 2, 1, 3} {
		for n := range limit {
			id := fmt.Sprintf("%d-%d", i, n)
			must[store.Document](t)(s.Create(audited(t), doc("Bundle", id, id, `{}`)))
		}
		page := must[store.AuditPage](t)(s.WaitForAudit(t.Context(), cursor, limit, time.Minute))
		if len(page.Records) != limit {
			t.Fatalf("page %d has %d records, want %d", i, len(page.Records), limit)
		}
		cursor = page.Next
	}
}

// A server that crashes before its WAL reaches the disk assigns the ids of rolled-back transactions again. A reader
// that has read past these ids must not skip the records of the new transactions.
func TestI10AuditSkipsNothingAfterACrash(t *testing.T) {
	server := pgtest.StartServer(t, map[string]string{"wal_writer_delay": "10s"}) // nothing but commits flushes the WAL
	dsn := pgtest.NewDatabase(t, server.Cluster)
	for name, isReadAgain := range map[string]bool{"after a page": false, "after an empty page": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t, dsn)
			r := readAudit(t, s, 100)
			for !r.readPage() {
			}
			clear(r.seen)
			first := "first " + name
			must[store.Document](t)(s.Create(audited(t), doc("Bundle", first, first, `{}`)))
			if isReadAgain {
				r.readAll(first)
			}
			rollbacks(t, dsn, 200)
			r.readAll(first)
			server.Kill()
			server.Start()
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			want := []string{first}
			for i := range 20 {
				want = append(want, fmt.Sprint(name, i))
				if _, err := conn.Exec(t.Context(), `insert into history (at, action, kind, id, scope, version, generation,
					principal, account, request_id, token, audit)
					values (now(), 'create', 'Bundle', $1, '', 1, 1, 'ann', '1', 'r', $2, '{"request":{}}')`,
					want[i+1], i); err != nil {
					t.Fatal(err)
				}
			}
			r.store = open(t, dsn)
			r.readAll(want...)
		})
	}
}
