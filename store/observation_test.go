package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// timed is a kind whose status has a time, t, that is no content. Its short form is the status itself.
var timed = KindSpec{Kind: "A", History: true,
	Render: func(d Document) ([]byte, error) { return fmt.Appendf(nil, "%s|%s", d.Spec, d.Status), nil },
	Head:   func(wire []byte) int { return bytes.IndexByte(wire, '|') },
	Tail:   func(d Document) ([]byte, error) { return fmt.Appendf(nil, "|%s", d.Status), nil },
	Compare: func(before, after Document) Difference {
		content := func(d Document) (at string, n int) {
			var status struct {
				T string `json:"t"`
				N int    `json:"n"`
			}
			_ = json.Unmarshal(d.Status, &status)
			return status.T, status.N
		}
		wasAt, was := content(before)
		isAt, is := content(after)
		switch {
		case was != is:
			return Different
		case wasAt != isAt:
			return ObservedLater
		}
		return Equal
	},
	Observations: &ObservationForm{
		Of:     func(_, after Document, _ []byte) []byte { return after.Status },
		Status: func(d *Document, short []byte) error { d.Status = bytes.Clone(short); return nil },
		Tail:   func(_, short []byte) ([]byte, error) { return append([]byte("|"), short...), nil },
	},
}

func openTimed(t *testing.T, adapt func(*Options)) *Store {
	t.Helper()
	o := Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{timed}}
	if adapt != nil {
		adapt(&o)
	}
	s, err := OpenPatiently(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.HoldWrites()
	t.Cleanup(s.Close)
	return s
}

func createTimed(t *testing.T, s *Store, id string) Document {
	t.Helper()
	d, err := s.Create(t.Context(), Document{Kind: "A", ID: id, Spec: []byte(`{"s":1}`),
		Status: []byte(`{"n":1,"t":"0"}`)})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// at sets the time of a status.
func at(moment string) func(*Document) error {
	return func(d *Document) error {
		d.Status = fmt.Appendf(nil, `{"n":1,"t":%q}`, moment)
		return nil
	}
}

// Each way to read a document has the times of its short form, and each other write keeps them.
func TestI2AShortObservationIsReadAndKept(t *testing.T) {
	s, ctx := openTimed(t, nil), t.Context()
	created := createTimed(t, s, "1")
	observe := func(moment string) Document {
		t.Helper()
		d, changed, err := s.Update(ctx, "A", "1", 0, at(moment))
		if err != nil || changed || d.Version != created.Version {
			t.Fatalf("%+v, %v, %v", d, changed, err)
		}
		return d
	}
	check := func(moment string) {
		t.Helper()
		want := fmt.Sprintf(`"t":%q`, moment)
		tail := func(wire []byte) string {
			_, after, _ := bytes.Cut(wire, []byte("|"))
			return strings.ReplaceAll(string(after), " ", "")
		}
		whole, err1 := s.Get(ctx, "A", "1")
		wire, err2 := s.GetWire(ctx, "A", "1")
		partial, err3 := s.GetStatus(ctx, "A", "1")
		list, err4 := s.List(ctx, Query{Kind: "A"})
		wires, err5 := s.List(ctx, Query{Kind: "A", WireOnly: true})
		bare, err6 := s.List(ctx, Query{Kind: "A", WithoutSpec: true})
		for i, err := range []error{err1, err2, err3, err4, err5, err6} {
			if err != nil {
				t.Fatalf("read %d: %v", i, err)
			}
		}
		for i, d := range []Document{whole, wire, partial, list.Documents[0], wires.Documents[0],
			bare.Documents[0]} {
			hasStatus := i == 1 || i == 4 || strings.Contains(strings.ReplaceAll(string(d.Status), " ", ""), want)
			if !hasStatus || !strings.Contains(tail(d.Wire), want) {
				t.Errorf("read %d: want %s: %s, %s", i, want, d.Status, d.Wire)
			}
		}
	}
	observe("1")
	check("1")
	observe("2")
	check("2")
	if _, changed, err := s.Update(ctx, "A", "1", 0, func(d *Document) error {
		d.Spec = []byte(`{"s":2}`)
		return nil
	}); err != nil || !changed {
		t.Fatal(changed, err)
	}
	check("2")
	created.Version++
	known := observe("3")
	err := s.Tx(ctx, func(tx *Tx) error { // not together with others
		_, _, err := tx.Update(ctx, "A", "1", 0, at("4"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	check("4")
	if _, _, err := s.UpdateFrom(ctx, known, at("5")); err != nil { // known is stale
		t.Fatal(err)
	}
	check("5")
	if err := s.Remove(ctx, "A", "1", 0); err != nil {
		t.Fatal(err)
	}
	if d, err := s.Tombstone(ctx, "A", "1"); err != nil || !strings.Contains(string(d.Status), `"5"`) {
		t.Errorf("%s, %v", d.Status, err)
	}
}

// A process of the release before does not know the short form. It must not write beside the times of another state.
func TestTheReleaseBeforeDoesNotWriteBesideAShortObservation(t *testing.T) {
	s, ctx := openTimed(t, nil), t.Context()
	createTimed(t, s, "1")
	const old = `update document set version = version + 1, spec = coalesce($1::jsonb, spec), token = 7,
		xid = pg_current_xact_id()`
	if _, err := s.pool.Exec(ctx, old, `{"s":2}`); err != nil {
		t.Errorf("without a short form: %v", err)
	}
	if _, _, err := s.Update(ctx, "A", "1", 0, at("1")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(ctx, old, `{"s":3}`); err == nil || !strings.Contains(err.Error(), "document_detail") {
		t.Errorf("beside a short form: %v", err)
	}
}

// groupTracer stops the first statement of a group until the test lets it go on, and counts the statements.
type groupTracer struct {
	begun, proceed chan struct{}
	statements     atomic.Int64
}

func (g *groupTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if data.SQL == observeGroupSQL && g.statements.Add(1) == 1 {
		close(g.begun)
		<-g.proceed
	}
	return ctx
}

func (g *groupTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Observations that arrive while a statement runs share the next one. One whose row another transaction has locked
// waits alone, and so does one of a document that has changed.
func TestObservationsShareStatements(t *testing.T) {
	tracer := &groupTracer{begun: make(chan struct{}), proceed: make(chan struct{})}
	s := openTimed(t, func(o *Options) { o.Tracer = tracer })
	const documents = 20
	var known [documents]Document
	for i := range known {
		known[i] = createTimed(t, s, fmt.Sprint(i))
	}
	var group, last sync.WaitGroup
	observe := func(to *sync.WaitGroup, i int) {
		to.Go(func() {
			if _, changed, err := s.UpdateFrom(context.Background(), known[i], at("later")); err != nil || changed {
				t.Errorf("document %d: %v, %v", i, changed, err)
			}
		})
	}
	observe(&group, 0)
	<-tracer.begun
	locked := make(chan struct{})
	unlock := make(chan struct{})
	var holder sync.WaitGroup
	holder.Go(func() {
		if err := s.Tx(context.Background(), func(tx *Tx) error {
			_, err := tx.GetForUpdate(context.Background(), "A", "1")
			close(locked)
			<-unlock
			return err
		}); err != nil {
			t.Error(err)
		}
	})
	<-locked
	if _, _, err := s.UpdateFrom(t.Context(), known[2], func(d *Document) error { // another writer
		d.Spec = []byte(`{"s":2}`)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	observe(&last, 1)
	for i := 2; i < documents; i++ {
		observe(&group, i)
	}
	for s.observations.length() < documents-1 {
		runtime.Gosched()
	}
	close(tracer.proceed)
	group.Wait() // while the row of document 1 is locked
	close(unlock)
	last.Wait()
	holder.Wait()
	// The first, the group, and a few for documents 1 and 2, which are tried alone.
	if n := tracer.statements.Load(); n > 8 {
		t.Errorf("%d documents took %d statements", documents, n)
	}
	for i := range known {
		if d, err := s.Get(t.Context(), "A", fmt.Sprint(i)); err != nil || !strings.Contains(string(d.Status), "later") {
			t.Errorf("document %d: %s, %v", i, d.Status, err)
		}
	}
	if d, err := s.Get(t.Context(), "A", "2"); err != nil || string(d.Spec) != `{"s": 2}` || d.Version != 2 {
		t.Errorf("%s, version %d, %v", d.Spec, d.Version, err)
	}
}

// PostgreSQL refuses one write of a group: the others are stored.
func TestARefusedObservationFailsAlone(t *testing.T) {
	tracer := &groupTracer{begun: make(chan struct{}), proceed: make(chan struct{})}
	s := openTimed(t, func(o *Options) { o.Tracer = tracer })
	known := []Document{createTimed(t, s, "0"), createTimed(t, s, "1"), createTimed(t, s, "2")}
	if _, err := s.pool.Exec(t.Context(), `alter table document add constraint c check (position('bad' in
		convert_from(coalesce(substr(observed, 9), ''), 'UTF8')) = 0)`); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(known))
	var group sync.WaitGroup
	for i, moment := range []string{"first", "good", "bad"} {
		group.Go(func() { _, _, errs[i] = s.UpdateFrom(context.Background(), known[i], at(moment)) })
		if i == 0 {
			<-tracer.begun
		}
	}
	for s.observations.length() < 2 {
		runtime.Gosched()
	}
	close(tracer.proceed)
	group.Wait()
	if errs[0] != nil || errs[1] != nil || errs[2] == nil {
		t.Errorf("the errors are %v", errs)
	}
	if d, err := s.Get(t.Context(), "A", "1"); err != nil || !strings.Contains(string(d.Status), "good") {
		t.Errorf("%s, %v", d.Status, err)
	}
}

// The statements of a group look up their documents by their keys, however many there are.
func TestAGroupReadsNoOtherDocuments(t *testing.T) {
	s, ctx := openTimed(t, nil), t.Context()
	if _, err := s.pool.Exec(ctx, `insert into document (kind, id, scope, name, version, generation, spec, status, wire,
			created_at, updated_at, token)
		select 'A', i::text, '', '', 1, 1, '{}', '{}', '', now(), now(), 1 from generate_series(1, 10000) i`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(ctx, `analyze document`); err != nil {
		t.Fatal(err)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, c := range map[string]struct {
		sql       string
		arguments int
	}{
		"observations": {observeGroupSQL, 6},
		"changes":      {sharedUpdate.sql, len(sharedUpdate.columns) + len(historyColumns)},
	} {
		if _, err := conn.Exec(ctx, `prepare `+name+` as `+c.sql); err != nil {
			t.Fatal(err)
		}
		nulls := "(null" + strings.Repeat(", null", c.arguments-1) + ")"
		for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
			if _, err := conn.Exec(ctx, `set plan_cache_mode = `+mode); err != nil {
				t.Fatal(err)
			}
			rows, err := conn.Query(ctx, `explain (costs off) execute `+name+nulls)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			if !strings.Contains(plan, "Index Scan using document_pkey") || !strings.Contains(plan, "Tid Scan") ||
				strings.Contains(plan, "Seq Scan") {
				t.Errorf("%s, %s:\n%s", name, mode, plan)
			}
		}
		// The plan is made once for each connection, and not for each number of writes.
		if _, err := conn.Exec(ctx, `set plan_cache_mode = auto`); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, err := conn.Exec(ctx, `execute `+name+nulls); err != nil {
				t.Fatal(err)
			}
		}
		var custom int
		if err := conn.QueryRow(ctx, `select custom_plans from pg_prepared_statements where name = $1`, name).Scan(
			&custom); err != nil || custom > 10 {
			t.Errorf("%s: %d plans, %v", name, custom, err)
		}
	}
}
