package dispatch

import (
	"context"
	"testing"
	"time"

	"atoll.dev/internal/pgsession"
	"atoll.dev/internal/pgtest"
)

// TestAnEndedLeaseSessionIsNoticedAtOnce: while a server waits for its next look at the division, PostgreSQL ends the
// session with its lease, and another server may take its slots. The wait ends with an error, however long it is.
func TestAnEndedLeaseSessionIsNoticedAtOnce(t *testing.T) {
	dsn := pgtest.DSN(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lease, err := pgsession.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close(context.WithoutCancel(ctx))
	other, err := pgsession.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.WithoutCancel(ctx))

	// A wait that passes leaves the session as it was.
	for range 2 {
		if err := waitInSession(ctx, lease, time.Millisecond); err != nil {
			t.Fatalf("a wait without an event: %v", err)
		}
	}
	var pid int
	if err := query(ctx, lease, `select pg_backend_pid()`, &pid); err != nil {
		t.Fatalf("the session after two waits: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- waitInSession(ctx, lease, time.Hour) }()
	if _, err := other.Exec(ctx, `select pg_terminate_backend($1)`, pid); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || ctx.Err() != nil {
		t.Errorf("the wait in an ended session: %v (%v)", err, ctx.Err())
	}
}
