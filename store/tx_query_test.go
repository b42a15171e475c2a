package store_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// countingConn counts writes to the server: one for a statement, or for several that are sent
// together.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// TestATransactionBeginsWithItsFirstQuery: "begin" costs no round trip, and the connection is free again when the rows
// were read to their end, were closed before it, or could not be read.
func TestATransactionBeginsWithItsFirstQuery(t *testing.T) {
	var writes atomic.Int64
	st := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.MaxConns = 1
		o.Hooks.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return countingConn{conn, &writes}, err
		}
	})
	const sql = `select i from generate_series(1, $1::int) i`
	read := func(tx *store.Tx, n int) error {
		rows, err := tx.Query(t.Context(), sql, n)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err == nil && len(found) != n {
			t.Errorf("%d rows of %d", len(found), n)
		}
		return err
	}
	sent := int64(0)
	for range 3 { // at first the statements are prepared
		if err := st.Tx(t.Context(), func(tx *store.Tx) error {
			before := writes.Load()
			err := read(tx, 3)
			sent = writes.Load() - before
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if sent != 1 {
		t.Errorf("begin and the first query take %d round trips", sent)
	}
	if err := st.Tx(t.Context(), func(tx *store.Tx) error {
		rows, err := tx.Query(t.Context(), sql, 100)
		if err != nil {
			return err
		}
		if !rows.Next() {
			t.Error("no row")
		}
		rows.Close()
		return read(tx, 2)
	}); err != nil {
		t.Errorf("after rows that were closed early: %v", err)
	}
	if err := st.Tx(t.Context(), func(tx *store.Tx) error {
		rows, err := tx.Query(t.Context(), `select 1 / ($1::int - 1)`, 1)
		if err == nil {
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
		}
		return err
	}); err == nil {
		t.Error("a query that fails has no error")
	}
	if err := st.Tx(t.Context(), func(tx *store.Tx) error { return read(tx, 1) }); err != nil {
		t.Errorf("after a query that failed: %v", err)
	}
}
