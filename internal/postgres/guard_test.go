package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestTheGuardDoesNotFlap(t *testing.T) {
	for _, c := range []struct {
		mode Mode
		free uint64
		want Mode
	}{
		{Writable, reserve, Writable}, {Writable, reserve - 1, ReadOnly},
		{ReadOnly, reserve + 1, ReadOnly}, {ReadOnly, 2*reserve - 1, ReadOnly}, {ReadOnly, 2 * reserve, Writable},
	} {
		if got := decide(c.mode, c.free); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestANearlyFullDiskRefusesWritesAndKeepsReading(t *testing.T) {
	c := cluster(t)
	started(t, c)
	if err := c.EnsureDatabase(withTimeLimit(t), "d", "o"); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(withTimeLimit(t), c.DSN("d", "o"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(withTimeLimit(t), "create table t (a int)"); err != nil {
		t.Fatal(err)
	}
	var free atomic.Uint64
	free.Store(10 * reserve)
	changes := make(chan Mode, 10)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- guard{free: func() (uint64, error) { return free.Load(), nil }, set: c.setMode,
			changed: func(now Mode, _ uint64) { changes <- now }, every: 5 * time.Millisecond}.run(ctx)
	}()
	defer func() { stop(); <-done }()

	refused := func() bool {
		_, err := conn.Exec(withTimeLimit(t), "insert into t values (1)")
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if err != nil && (!ok || pgErr.Code != "25006") {
			t.Fatal(err)
		}
		return err != nil
	}
	if refused() {
		t.Fatal("it is read only with an empty disk")
	}
	for _, full := range []bool{true, false} {
		free.Store(map[bool]uint64{true: reserve / 2, false: 3 * reserve}[full])
		if got := <-changes; (got == ReadOnly) != full {
			t.Fatal(got)
		}
		for refused() != full { // a session reads the new setting a moment later
		}
		var n int
		if err := conn.QueryRow(withTimeLimit(t), "select count(*) from t").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
}
