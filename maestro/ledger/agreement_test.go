package ledger

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// TestAnAgreementIsRecordedOnce records agreements of one agent. Each records the use of digests. Only the first
// one in a life of the database writes the record of the comparison, which must be on disk.
func TestAnAgreementIsRecordedOnce(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), LedgerSchema+";"+DigestSchema+";"+ComparedSchema); err != nil {
		t.Fatal(err)
	}
	before := ""
	for i, want := range []struct {
		life       string
		mustBeSync bool
	}{{"one", true}, {"one", false}, {"two", true}, {"two", false}} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), agreementSQL, "mc1", want.life); err != nil {
			t.Fatal(err)
		}
		var life, compared, answered, now, sync string
		if err := tx.QueryRow(t.Context(), `select c.life, c.at::text, d.answered_at::text, now()::text,
				current_setting('synchronous_commit')
			from agent_compared c join agent_digest d using (consumer) where consumer = 'mc1'`).Scan(
			&life, &compared, &answered, &now, &sync); err != nil {
			t.Fatal(err)
		}
		if life != want.life || answered != now || (sync != "off") != want.mustBeSync {
			t.Errorf("agreement %d: life %s, last digest %s at %s, synchronous_commit %s", i, life, answered, now, sync)
		}
		if isNew := compared != before; isNew != want.mustBeSync {
			t.Errorf("agreement %d writes the record of the comparison: %t, want %t", i, isNew, want.mustBeSync)
		}
		before = compared
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
