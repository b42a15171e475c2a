package ledger

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// TestConsumersAreFoundWithoutReadingAllWorks counts the rows that the search for consumers reads: a few for each
// consumer, however many works they have.
func TestConsumersAreFoundWithoutReadingAllWorks(t *testing.T) {
	t.Parallel()
	const consumers, works = 20, 20_000
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	schema := strings.Join([]string{LedgerSchema, DigestSchema, ForceSchema, AcknowledgedSchema, VersionSchema, BucketSchema,
		`insert into ledger (id, consumer, source, wanted, acknowledged)
			select 'w' || n, 'mc' || n % 20, 'source', 1, 1 from generate_series(1, 20000) n`,
		`insert into ledger (id, consumer, source, wanted, gone_at) values ('gone', 'removed', 'source', 1, now())`,
		`analyze ledger`}, ";\n")
	if _, err := conn.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(t.Context(), consumersSQL)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) != consumers || names[0] != "mc0" || names[consumers-1] != "mc9" {
		t.Errorf("the consumers with bundles are %q, %v", names, err)
	}
	var text []byte
	if err := conn.QueryRow(t.Context(), "explain (analyze, format json) "+consumersSQL).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	if read := plans[0].Plan.rowsRead(); read > 10*consumers {
		t.Errorf("the search for %d consumers of %d works reads %.0f rows:\n%s", consumers, works, read, text)
	}
}

// planNode is a node of a plan with the numbers of its execution.
type planNode struct {
	Relation string     `json:"Relation Name"`
	Rows     float64    `json:"Actual Rows"`
	Removed  float64    `json:"Rows Removed by Filter"`
	Loops    float64    `json:"Actual Loops"`
	Plans    []planNode `json:"Plans"`
}

// rowsRead returns the number of rows of tables that the node and the nodes below it read.
func (n planNode) rowsRead() (read float64) {
	if n.Relation != "" {
		read = (n.Rows + n.Removed) * n.Loops
	}
	for _, child := range n.Plans {
		read += child.rowsRead()
	}
	return read
}

// TestARepeatedComparisonWritesNothing: the record of a comparison waits for the disk, and a comparison in the same
// life of the database writes none.
func TestARepeatedComparisonWritesNothing(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), ComparedSchema); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		life   string
		writes bool
	}{{"one", true}, {"one", false}, {"two", true}, {"two", false}} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), comparedSQL, "mc1", want.life); err != nil {
			t.Fatal(err)
		}
		var writes bool
		var sync string
		if err := tx.QueryRow(t.Context(), `select pg_current_xact_id_if_assigned() is not null,
			current_setting('synchronous_commit')`).Scan(&writes, &sync); err != nil {
			t.Fatal(err)
		}
		if writes != want.writes || sync == "off" {
			t.Errorf("comparison %d in life %s writes: %t, with synchronous_commit %s", i, want.life, writes, sync)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
