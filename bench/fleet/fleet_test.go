package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/bench/bed"
	"atoll.dev/internal/quick"
)

func TestMain(m *testing.M) {
	bed.RunPart()
	os.Exit(m.Run())
}

// newBed starts a region for a test.
func newBed(t *testing.T, o bed.Options) *bed.Bed {
	t.Helper()
	b, err := bed.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestCopiedWorkEqualsAcknowledgedOne compares all rows of a work that was made by the API, delivered and acknowledged
// with the rows that the sample's copy has for the same work.
func TestCopiedWorkEqualsAcknowledgedOne(t *testing.T) {
	quick.LeavesOut(t, "starts the processes of a fleet")
	ctx := t.Context()
	b := newBed(t, bed.Options{})
	f := newFleet(b, 1, 1, 512)
	if err := f.register(); err != nil {
		t.Fatal(err)
	}
	s, err := makeSample(ctx, b, f.size)
	if err != nil {
		t.Fatal(err)
	}
	texts := f.textsOf(0)
	if _, err := acknowledgeOne(ctx, b, texts); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, b.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	made := maskedRows(t, conn, texts.id)
	if err := deleteRows(ctx, conn, texts.id); err != nil {
		t.Fatal(err)
	}
	if rows := maskedRows(t, conn, texts.id); strings.Count(rows, "\n") > 1 {
		t.Fatalf("rows remain after their deletion:\n%s", rows)
	}
	if err := s.store(ctx, b.DSN, 1, func(int) rowTexts { return texts }); err != nil {
		t.Fatal(err)
	}
	copied := maskedRows(t, conn, texts.id)
	if made != copied {
		t.Errorf("a work of the API has the rows\n%s\nits copy has\n%s", made, copied)
	}
	for _, table := range []string{"document ", "feed ", "history ", "ledger ", "bundles "} {
		if !strings.Contains("\n"+copied, "\n"+table) {
			t.Errorf("no rows of %s are compared:\n%s", table, copied)
		}
	}
	if strings.Contains(copied, "sample-") {
		t.Errorf("a text of the sample remains:\n%s", copied)
	}
}

// Values of which each work has its own.
var (
	timeValue     = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)`)
	uuidValue     = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	numberValue   = regexp.MustCompile(`"(xid|token|seq)": "?-?\d+"?`)
	sequenceValue = regexp.MustCompile(`\d{18,}`)
	binaryValue   = regexp.MustCompile(`"\\\\x([0-9a-f]*)"`)
)

// maskedRows returns all rows about a work, and the number of bundles, one a line, with binary columns as text and with
// the values masked of which each work has its own.
func maskedRows(t *testing.T, conn *pgx.Conn, id string) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `select relname from pg_class where relnamespace = 'public'::regnamespace `+
		`and relkind = 'r'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, table := range tables {
		rows, err := conn.Query(
			t.Context(),
			fmt.Sprintf("select to_jsonb(t)::text from %s t where to_jsonb(t)::text like $1",
				table),
			"%"+id+"%",
		)
		if err != nil {
			t.Fatal(err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range found {
			lines = append(lines, table+" "+line)
		}
	}
	var bundles int
	if err := conn.QueryRow(t.Context(), `select coalesce(sum(n), 0) from tally where kind = 'Bundle'`).
		Scan(&bundles); err != nil {
		t.Fatal(err)
	}
	lines = append(lines, fmt.Sprint("bundles ", bundles))
	slices.Sort(lines)
	text := binaryValue.ReplaceAllStringFunc(strings.Join(lines, "\n")+"\n", func(hexadecimal string) string {
		var decoded []byte
		if _, err := fmt.Sscanf(strings.Trim(hexadecimal, `"\x`), "%x", &decoded); err != nil {
			return hexadecimal
		}
		return string(decoded)
	})
	for _, mask := range []struct {
		values *regexp.Regexp
		mask   string
	}{{timeValue, "TIME"}, {uuidValue, "UUID"}, {numberValue, `"$1": N`}, {sequenceValue, "SEQUENCE"}} {
		text = mask.values.ReplaceAllString(text, mask.mask) // in this order: a token may be as long as a sequence
	}
	return text
}

// TestFleetAgreesAfterEachProcessWasKilled runs the whole benchmark with a small fleet, and two servers.
func TestFleetAgreesAfterEachProcessWasKilled(t *testing.T) {
	quick.LeavesOut(t, "runs a fleet for half a minute")
	ctx := t.Context()
	*outage = time.Second
	b := newBed(t, bed.Options{Apart: true})
	f := newFleet(b, 70, 10, 256)
	f.digests.Store(true)
	if err := f.prepareByCopy(ctx); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]bed.Process{"broker": b.Broker, "server": b.Server, "postgres": b.Database} {
		if err := f.kill(ctx, name, p); err != nil {
			t.Fatalf("%s killed: %v", name, err)
		}
	}
	if err := f.measureShared(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestDisagreeingAgentIsNamed checks that the comparison fails for one agent whose status the ledger does not have, and
// for one whose work is missing.
func TestDisagreeingAgentIsNamed(t *testing.T) {
	quick.LeavesOut(t, "starts the processes of a fleet")
	ctx := t.Context()
	b := newBed(t, bed.Options{Apart: true})
	f := newFleet(b, 5, 4, 256)
	f.digests.Store(true)
	if err := f.prepareByCopy(ctx); err != nil {
		t.Fatal(err)
	}
	f.agents[3].mu.Lock()
	f.agents[3].works[2].hash[0]++ // and no report of it
	f.agents[3].mu.Unlock()
	if err := f.compareAll(ctx); err == nil || !strings.Contains(err.Error(), "1 agents") ||
		!strings.Contains(err.Error(), "mc3") {
		t.Errorf("one agent has another status: %v", err)
	}
	if err := f.query(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `delete from ledger where id = $1`, f.id(1, 0))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.compareAll(ctx); err == nil || !strings.Contains(err.Error(), "2 agents") ||
		!strings.Contains(err.Error(), "mc1 mc3") {
		t.Errorf("two agents disagree: %v", err)
	}
	later := time.Now()
	if names := f.agentsThat(func(a *agent) bool { return !a.agreedSince(later) }); len(names) != f.clusters {
		t.Errorf("%d agents have no answer since now, not %d", len(names), f.clusters)
	}
}
