package maestro

import (
	"atoll.dev/test/testsite"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/digest"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/database"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/resync"
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

// openCounted opens a new database whose statements are counted. It is closed when the test ends.
func openCounted(t *testing.T) (*statementCounter, *store.Store) {
	t.Helper()
	counter := &statementCounter{}
	o := database.Options(pgtest.DSN(t), 0, testsite.Log(t))
	o.Tracer = counter
	o.PollInterval = time.Hour
	st, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return counter, st
}

// TestAReadIsOneRoundTrip: what only reads opens no transaction, which would cost three round trips more.
func TestAReadIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	counter, st := openCounted(t)
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

// TestAComparisonHasOneTransaction counts the transactions and round trips by which a server without
// differences answers an agent's digest and its list of works. After an outage of the broker all agents
// compare at the same time, and the answers wait for round trips.
func TestAComparisonHasOneTransaction(t *testing.T) {
	t.Parallel()
	counter, st := openCounted(t)
	l := ledger.New(st)
	comparer := resync.New(resync.Options{Store: st, Ledger: l, Agents: silentAgents{},
		Life: func() string { return "life" }, UnknownChanged: func() {}, Logger: testsite.Log(t)})
	held := []work.WorkState{{ID: "w1", Version: 1, Status: "0123456789abcdef", Life: "life"}}
	exec := func(sql string) {
		if err := st.Tx(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(kind string, content any) {
		data, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		if err := comparer.Answer(t.Context(), "mc1", bus.Event{Type: kind, Data: data}, time.Now()); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	exec(`insert into ledger (id, consumer, source, wanted, acknowledged, status_hash)
		values ('w1', 'mc1', 's', 1, 1, '0123456789abcdef0')`)
	works := work.BucketWorks{Buckets: []int{0}, Works: held}
	for kind, content := range map[string]any{
		work.AgentDigest: work.Digest{Works: 1, Root: digest.Root(digest.ItemsOf(held))},
		work.AgentWorks:  works,
	} {
		counter.take()
		answer(kind, content)
		sent, commits := counter.take(), 0
		for _, sql := range sent {
			if sql == "commit" {
				commits++
			}
		}
		// The first statement of a transaction goes with "begin" and is not counted.
		if commits != 1 || len(sent) > 5 {
			t.Errorf("the answer to %s has %d transactions and sends %d statements: %q", kind, commits, len(sent), sent)
		}
	}
	// The agent held an unknown work, and holds it no more: the comparison removes its record.
	exec(`insert into unknown_work (consumer, id, generation) values ('mc1', 'stranger', 1)`)
	answer(work.AgentWorks, works)
	if holdings, err := l.HoldingsOf(t.Context(), "life", "mc1"); err != nil || holdings["mc1"].Unknown != 0 ||
		holdings["mc1"].ComparedAt == nil {
		t.Errorf("after the comparison the ledger has %+v, %v", holdings["mc1"], err)
	}
}

// silentAgents is resync.Agents without any agent.
type silentAgents struct{}

func (silentAgents) Publish(context.Context, work.Consumer, bus.Event) error { return nil }

func (silentAgents) ApplyComparison(context.Context, work.Consumer, ledger.Comparison) error {
	return nil
}
