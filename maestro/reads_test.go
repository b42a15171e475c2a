package maestro

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// statementCounter counts the statements that a store sends one by one; each is a round trip.
type statementCounter struct {
	mu   sync.Mutex
	sent []string
}

// TraceQueryStart implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, "pg_backend_pid()") { // a new connection identifies itself
		return ctx
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, d.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns the statements since the last take.
func (c *statementCounter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = nil
	return sent
}

// TestAReadIsOneRoundTrip: what only reads opens no transaction, which would cost three round trips more.
func TestAReadIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	counter := &statementCounter{}
	o := storeOptions(pgtest.DSN(t), 0, testLog(t))
	o.Tracer = counter
	o.PollInterval = time.Hour
	st, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l := ledger.New(st)
	for name, read := range map[string]func(context.Context) error{
		"pendingWorks": func(ctx context.Context) error { return l.PendingWorks(ctx, func([]ledger.PendingWork) {}) },
		"snapshots":    func(ctx context.Context) error { _, err := l.Snapshots(ctx, []work.ID{"w1"}); return err },
		"deliveryOf":   func(ctx context.Context) error { _, err := l.DeliveryOf(ctx, "w1"); return err },
		"tombstonesOf": func(ctx context.Context) error { _, err := l.TombstonesOf(ctx, "s", []work.ID{"w1"}); return err },
		"holdingsOf":   func(ctx context.Context) error { _, err := l.HoldingsOf(ctx, "life", "mc1"); return err },
		"statusHashes": func(ctx context.Context) error { _, _, err := l.StatusHashes(ctx, "mc1", nil); return err },
		"sourceHashes": func(ctx context.Context) error {
			_, err := l.SourceHashes(ctx, "s", []work.StatusHash{{ID: "w1"}})
			return err
		},
		"consumersWithBundles": func(ctx context.Context) error { _, err := l.ConsumersWithBundles(ctx); return err },
		"digestAgents":         func(ctx context.Context) error { _, err := l.DigestAgents(ctx); return err },
		"unacknowledged": func(ctx context.Context) error {
			_, err := l.Unacknowledged(ctx, "mc1", []work.ID{"w1"})
			return err
		},
		"adoptionsWanted": func(ctx context.Context) error { _, err := l.AdoptionsWanted(ctx, "mc1"); return err },
	} {
		counter.take()
		if err := read(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if sent := counter.take(); len(sent) != 1 {
			t.Errorf("%s sends %d statements: %q", name, len(sent), sent)
		}
	}
}
