package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/access"
	"atoll.dev/api/audit"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// open returns a chain in the database of a service with documents of one kind, and a connection of its own.
func open(t *testing.T, dsn string) (*Chain, *store.Store, *pgx.Conn) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn, Kinds: []store.KindSpec{{Kind: "Thing", History: true,
		Owner: func(d store.Document) string { return d.Scope }}}}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	chain, err := OpenChain(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return chain, s, conn
}

// create creates a thing in an audited request.
func create(t *testing.T, s *store.Store, id string) {
	t.Helper()
	ctx := store.WithActor(t.Context(), store.Actor{Principal: "ann", Account: "1", RequestID: "r-" + id,
		Audit: audit.Request{Proof: audit.BySignature, Action: "CreateThing",
			UserAgent: "ü" + strings.Repeat("x", 500)}.Encode()})
	if _, err := s.Create(ctx, store.Document{Kind: "Thing", ID: id, Scope: "1"}); err != nil {
		t.Fatal(err)
	}
}

func (c *Chain) reader(limit int) func(context.Context, int64) (Page, error) {
	return func(ctx context.Context, after int64) (Page, error) {
		return c.List(ctx, Query{After: after, Ascending: true, Limit: limit})
	}
}

// Two replicas gather while writers commit, a third starts again and again and is cut off at any point: each change is
// in one chain once, and changes without Audit are not in it.
func TestReplicasGatherEachChangeOnceIntoOneChain(t *testing.T) {
	chain, s, _ := open(t, pgtest.DSN(t))
	const writers, each = 4, 30
	quiet := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	var replicas, writing sync.WaitGroup
	for range 2 {
		g := &Gatherer{Chain: chain, Sources: map[string]Source{"things": Own{s}}, Log: quiet}
		replicas.Go(func() { _ = g.Run(ctx) })
	}
	replicas.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			short, stop := context.WithTimeout(ctx, time.Duration(i%20)*time.Millisecond)
			_ = (&Gatherer{Chain: chain, Sources: map[string]Source{"things": Own{s}}, Log: quiet}).Run(short)
			stop()
		}
	})
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				create(t, s, fmt.Sprintf("%d-%d", w, i))
				silent := store.Document{Kind: "Thing", ID: fmt.Sprintf("silent-%d-%d", w, i)}
				if _, err := s.Create(t.Context(), silent); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	for {
		v, err := Verify(t.Context(), Anchor{}, chain.reader(7))
		if err != nil {
			t.Fatal(err)
		}
		if v.Records == writers*each {
			break
		}
		if v.Records > writers*each || t.Context().Err() != nil {
			t.Fatalf("%d records of %d changes", v.Records, writers*each)
		}
	}
	cancel()
	replicas.Wait()
	page, err := chain.List(t.Context(), Query{Account: "1", Limit: 500})
	if err != nil || len(page.Entries) != writers*each {
		t.Fatalf("%d records of the account: %v", len(page.Entries), err)
	}
	seen := map[string]bool{}
	for _, e := range page.Entries {
		id := string(e.Record[strings.Index(string(e.Record), `"id":`):][:14])
		if seen[id] || len(e.Record) > 1500 || strings.Contains(string(e.Record), "silent") {
			t.Errorf("the record %s", e.Record)
		}
		seen[id] = true
	}
}

// filled returns a chain of 10 records.
func filled(t *testing.T) (*Chain, *pgx.Conn) {
	t.Helper()
	chain, _, conn := open(t, pgtest.DSN(t))
	var records []Record
	for i := range 10 {
		records = append(records, Record{Time: timeText(time.Date(2026, 1, 1+i, 0, 0, 0, 0, time.UTC)), Service: "x",
			Key: fmt.Sprint(i), Outcome: Done})
	}
	for range 2 { // the second time they are known
		if err := chain.appendRecords(t.Context(), records); err != nil {
			t.Fatal(err)
		}
	}
	return chain, conn
}

// Verify names the first record that is not as it was appended.
func TestVerifyFindsARemovedAlteredOrMovedRecord(t *testing.T) {
	chain, conn := filled(t)
	for _, c := range []struct {
		what, sql string
		broken    int64 // 0: the chain is whole
	}{
		{"nothing", `select 1`, 0},
		{"an altered record", `update audit_record set content = replace(content, 'done', 'none') where seq = 4`, 4},
		{"an altered record with its hash", `update audit_record set content = '{}', hash = previous where seq = 4`, 4},
		{"a removed record", `delete from audit_record where seq = 5`, 5},
		{"two records that changed places", `update audit_record r set content = o.content from audit_record o
			where r.seq in (3, 4) and o.seq = 7 - r.seq and (r.key is not null)`, 3},
		{"removed records at the end", `delete from audit_record where seq > 8`, 9},
		{"removed records at the end, and a head that agrees",
			`delete from audit_record where seq > 8;
			update audit_head set seq = 8, hash = (select hash from audit_record where seq = 8)`, 10},
		{"removed records at the beginning", `delete from audit_record where seq < 3`, 1},
		{"removed records at the beginning, and an anchor that agrees",
			`update audit_head set anchor = 2, anchor_hash = (select hash from audit_record where seq = 2);
			delete from audit_record where seq < 3`, 2},
	} {
		whole, err := Verify(t.Context(), Anchor{}, chain.reader(3))
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"create temp table r as select seq, previous, hash, content from audit_record",
			"create temp table h as select * from audit_head", "drop index if exists audit_record_key", c.sql} {
			if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
		}
		_, err = Verify(t.Context(), whole.Head, chain.reader(3))
		broken, _ := errors.AsType[*BrokenError](err)
		if (err != nil) != (c.broken != 0) || broken != nil && broken.Seq != c.broken {
			t.Errorf("after %s: %v, want record %d", c.what, err, c.broken)
		}
		if _, err := conn.Exec(t.Context(), `delete from audit_record; insert into audit_record (seq, previous, hash, content)
			select * from r; delete from audit_head; insert into audit_head select * from h; drop table r; drop table h`,
			pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Verify(t.Context(), Anchor{Seq: 4, Hash: noHash}, chain.reader(3))
	if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Seq != 4 {
		t.Errorf("another chain than the expected one: %v", err)
	}
}

// Records that are deleted by age leave a record by which the rest is verified.
func TestAChainIsVerifiedAfterOldRecordsWereDeleted(t *testing.T) {
	chain, _ := filled(t)
	before, err := Verify(t.Context(), Anchor{}, chain.reader(3))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{4, 0, 3} {
		deleted, err := chain.trim(t.Context(), time.Date(2026, 1, 5+min(i, 1)*(i-1)*3, 0, 0, 0, 0, time.UTC))
		if err != nil || deleted != want {
			t.Errorf("trim %d deleted %d, want %d: %v", i, deleted, want, err)
		}
		v, err := Verify(t.Context(), before.Head, chain.reader(3))
		if err != nil || v.Head.Seq <= before.Head.Seq {
			t.Errorf("after trim %d: %+v, %v", i, v, err)
		}
	}
}

// A flood of refused requests has few records, and one with the number of the others.
func TestAFloodOfDenialsIsSummedUp(t *testing.T) {
	chain, _, _ := open(t, pgtest.DSN(t))
	d := NewDenials(chain, slog.New(slog.DiscardHandler))
	const flood = 5000
	for range flood {
		d.Record(access.Denial{Caller: access.Identity{Account: "1"}, Code: "access-denied", Status: 403})
		d.Record(access.Denial{Code: "wrong-signature", Status: 403})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = d.Run(ctx) // writes what is there
	page, err := chain.List(t.Context(), Query{Limit: 500})
	if err != nil {
		t.Fatal(err)
	}
	counted := 0
	for _, e := range page.Entries {
		text := string(e.Record)
		counted++
		if _, n, ok := strings.Cut(text, `"count":`); ok {
			var sum int
			fmt.Sscan(strings.FieldsFunc(n, func(r rune) bool { return r == ',' || r == '}' })[0], &sum)
			counted += sum - 1
		}
	}
	if counted != 2*flood || len(page.Entries) > 2*accountBurst+10 {
		t.Errorf("%d records count %d denials of %d", len(page.Entries), counted, 2*flood)
	}
}
