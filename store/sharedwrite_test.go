package store_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// sharingKinds have each form of a record in the history, and each column.
var sharingKinds = append([]store.KindSpec{
	{Kind: "Brief", BriefHistory: true},
	{Kind: "Packed", History: true,
		Render: func(d store.Document) ([]byte, error) { return fmt.Appendf(nil, "%s|%s", d.Spec, d.Status), nil },
		Head:   func(wire []byte) int { return bytes.IndexByte(wire, '|') },
		Tail:   func(d store.Document) ([]byte, error) { return fmt.Appendf(nil, "|%s", d.Status), nil },
		Facets: func(d store.Document) []string { return []string{`a "b" {c}\`, "d,e", string(d.Status)} },
		Detail: func(status json.RawMessage) int { return bytes.Index(status, []byte(`,"detail"`)) },
		Recorded: func(_, after store.Document) json.RawMessage {
			return after.Status
		},
		Owner: func(d store.Document) string { return d.Scope }},
}, kinds...)

// gate stops the first write of a store until it is opened, so that the writes after it form a group.
type gate struct {
	once           sync.Once
	begun, proceed chan struct{}
	calls          sync.WaitGroup
	s              *store.Store
}

func openGated(t *testing.T, dsn string, set ...func(*store.Options)) *gate {
	t.Helper()
	g := &gate{begun: make(chan struct{}), proceed: make(chan struct{})}
	g.s = open(t, dsn, append(set, func(o *store.Options) { o.Tracer, o.Kinds = g, sharingKinds })...)
	g.s.HoldWrites()
	return g
}

// TraceQueryStart implements pgx.QueryTracer.
func (g *gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(fmt.Sprint(data.Args...), "the first write") {
		g.once.Do(func() {
			close(g.begun)
			<-g.proceed
		})
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (g *gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// together runs calls with one write each, in their order in one group.
func (g *gate) together(t *testing.T, calls ...func()) {
	t.Helper()
	g.calls.Go(func() {
		if _, err := g.s.Create(context.Background(), doc("Plain", "the first write", "", `{}`)); err != nil {
			t.Error(err)
		}
	})
	<-g.begun
	for n, call := range calls {
		g.calls.Go(call)
		for g.s.WaitingWrites() == n {
			runtime.Gosched()
		}
	}
	close(g.proceed)
	g.calls.Wait()
}

// transactions returns how many transactions have written documents.
func transactions(t *testing.T, dsn string) (n int) {
	t.Helper()
	conn := must[*pgx.Conn](t)(pgx.Connect(t.Context(), dsn))
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), `select count(distinct xid) from document where id <> 'the first write'`).Scan(
		&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// contents returns all rows of the tables, without what differs between two runs.
func contents(t *testing.T, dsn string) string {
	t.Helper()
	conn := must[*pgx.Conn](t)(pgx.Connect(t.Context(), dsn))
	defer conn.Close(t.Context())
	var all []string
	for _, query := range []string{
		`select (to_jsonb(d) - '{xid,token,created_at,updated_at,deleted_at}'::text[] || jsonb_build_object('order',
			(d.created_at <= d.updated_at), 'deleted', d.deleted_at is not null))::text from document d order by kind, id`,
		`select (to_jsonb(h) - '{xid,token,at,seq}'::text[] || jsonb_build_object('token', (select count(*) from document d
			where d.kind = h.kind and d.id = h.id and d.token = h.token and d.xid = h.xid and d.updated_at = h.at)))::text
			from history h order by kind, id, version`,
		`select (to_jsonb(f) - 'xid' || jsonb_build_object('documents', (select count(*) from document d
			where d.kind = f.kind and d.id = f.id and d.xid = f.xid)))::text from feed f order by kind, id`,
		`select kind || ' ' || sum(n) from tally group by kind order by kind`,
	} {
		rows, err := conn.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, must[[]string](t)(pgx.CollectRows(rows, pgx.RowTo[string]))...)
	}
	return strings.Join(all, "\n")
}

// Creations and changes of several kinds in one transaction leave the rows that each alone leaves, and reach followers.
func TestI1I2I10WritesOfAGroupAreAsThoseAlone(t *testing.T) {
	withActor := func(audit string) context.Context {
		return store.WithActor(context.Background(), store.Actor{Principal: "p", Account: "a", RequestID: "r", Audit: audit})
	}
	write := func(s *store.Store) (calls []func()) {
		for _, kind := range []store.Kind{"Brief", "Packed", "Bundle", "Plain"} {
			for i, change := range []func(*store.Document) error{
				spec(`{"s": "é\"\\ "}`),
				func(d *store.Document) error { d.Status = json.RawMessage(`{"c":2,"detail":"later"}`); return nil },
				func(d *store.Document) error { now := d.CreatedAt; d.DeletedAt = &now; return nil },
			} {
				id := fmt.Sprint("old-", i)
				must[store.Document](t)(s.Create(withActor(""), store.Document{Kind: kind, ID: id, Scope: "s", Name: id,
					Spec: json.RawMessage(`{"s": 1}`), Status: json.RawMessage(`{"c":1,"detail":"much"}`)}))
				calls = append(calls, func() {
					if _, changed, err := s.Update(withActor(`{"n":1}`), kind, id, 0, change); err != nil || !changed {
						t.Errorf("%s %s: %t, %v", kind, id, changed, err)
					}
				})
			}
			for i, audit := range []string{"", `{"n":2}`} {
				d := doc(kind, fmt.Sprint("new-", i), fmt.Sprint("named ", i), `{"s":"x"}`)
				d.Status = json.RawMessage(`{"c":3,"detail":"some"}`)
				calls = append(calls, func() {
					if _, err := s.Create(withActor(audit), d); err != nil {
						t.Errorf("%s %s: %v", kind, d.ID, err)
					}
				})
			}
		}
		return calls
	}
	aloneDSN, dsn := pgtest.DSN(t), pgtest.DSN(t)
	alone := open(t, aloneDSN, func(o *store.Options) { o.Kinds = sharingKinds })
	must[store.Document](t)(alone.Create(t.Context(), doc("Plain", "the first write", "", `{}`)))
	for _, call := range write(alone) {
		call()
	}
	g := openGated(t, dsn)
	w := follow(t, g.s, store.FollowOptions{})
	g.together(t, write(g.s)...)
	if want, got := contents(t, aloneDSN), contents(t, dsn); got != want {
		t.Errorf("in a group:\n%s\nalone:\n%s", got, want)
	}
	if n := transactions(t, dsn); n != 1 {
		t.Errorf("the documents are of %d transactions", n)
	}
	for _, kind := range []string{"Brief", "Packed", "Bundle", "Plain"} {
		w.has(kind+"/old-0", 2)
		w.has(kind+"/new-1", 1)
	}
}

// One write of a group is refused, in each way: it has its error, and the others are stored.
func TestARefusedWriteOfAGroupFailsAlone(t *testing.T) {
	for name, c := range map[string]struct {
		bad  store.Document
		want error
	}{
		"invalid":      {doc("Bundle", "bad", "bad", `{"a": "\u0000"}`), store.ErrInvalid},
		"exists":       {doc("Bundle", "old", "bad", `{}`), store.ErrExists},
		"named":        {doc("Bundle", "bad", "old", `{}`), store.ErrExists},
		"in the group": {doc("Bundle", "good", "bad", `{}`), store.ErrExists},
		"named in it":  {doc("Bundle", "bad", "good", `{}`), store.ErrExists},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := openGated(t, pgtest.DSN(t))
			must[store.Document](t)(g.s.Create(t.Context(), doc("Bundle", "old", "old", `{}`)))
			var errs [3]error
			g.together(t,
				func() { _, errs[0] = g.s.Create(context.Background(), doc("Bundle", "good", "good", `{}`)) },
				func() { _, errs[1] = g.s.Create(context.Background(), c.bad) },
				func() { _, _, errs[2] = g.s.Update(context.Background(), "Bundle", "old", 0, spec(`{"a":2}`)) })
			if errs[0] != nil || !errors.Is(errs[1], c.want) || errs[2] != nil {
				t.Errorf("the errors are %v", errs)
			}
			good := must[store.Document](t)(g.s.Get(t.Context(), "Bundle", "good"))
			old := must[store.Document](t)(g.s.Get(t.Context(), "Bundle", "old"))
			if good.Name != "good" || old.Name != "old" || string(old.Spec) != `{"a": 2}` {
				t.Errorf("%+v, %+v", good, old)
			}
		})
	}
}

// Two writes of one document in a group: with a condition one of them fails, and without one both are stored.
func TestI2TwoWritesOfOneDocumentInAGroupAreNotLost(t *testing.T) {
	g := openGated(t, pgtest.DSN(t))
	for _, id := range []string{"free", "strict"} {
		must[store.Document](t)(g.s.Create(t.Context(), doc("Bundle", id, id, `{"n":0}`)))
	}
	add := func(d *store.Document) error {
		var content struct{ N int }
		err := json.Unmarshal(d.Spec, &content)
		d.Spec = fmt.Appendf(nil, `{"n":%d}`, content.N+1)
		return err
	}
	var errs [4]error
	update := func(i int, id string, version int64) func() {
		return func() { _, _, errs[i] = g.s.Update(context.Background(), "Bundle", id, version, add) }
	}
	g.together(t, update(0, "free", 0), update(1, "free", 0), update(2, "strict", 1), update(3, "strict", 1))
	if err := errors.Join(errs[:2]...); err != nil {
		t.Error(err)
	}
	if (errs[2] == nil) == (errs[3] == nil) || !errors.Is(errors.Join(errs[2:]...), store.ErrStale) {
		t.Errorf("the strict updates returned %v", errs[2:])
	}
	free := must[store.Document](t)(g.s.Get(t.Context(), "Bundle", "free"))
	strict := must[store.Document](t)(g.s.Get(t.Context(), "Bundle", "strict"))
	if free.Version != 3 || string(free.Spec) != `{"n": 2}` || strict.Version != 2 {
		t.Errorf("%+v, %+v", free, strict)
	}
}

// Another transaction holds the row of one document of a group, or is creating another: the rest is stored before it
// ends.
func TestALockedDocumentDelaysNoOtherOfItsGroup(t *testing.T) {
	dsn := pgtest.DSN(t)
	g, other := openGated(t, dsn), open(t, dsn)
	for _, id := range []string{"locked", "free"} {
		must[store.Document](t)(g.s.Create(t.Context(), doc("Bundle", id, id, `{}`)))
	}
	h := hold(t, other, func(tx *store.Tx) error {
		if _, err := tx.GetForUpdate(t.Context(), "Bundle", "locked"); err != nil {
			return err
		}
		_, err := tx.Create(t.Context(), doc("Bundle", "made", "made", `{}`))
		return err
	})
	var errs [4]error
	var free sync.WaitGroup
	free.Add(2)
	var ended sync.WaitGroup
	ended.Go(func() {
		free.Wait() // while the transaction is open
		h.commit(t)
	})
	g.together(t,
		func() { _, _, errs[0] = g.s.Update(context.Background(), "Bundle", "locked", 0, spec(`{"a":1}`)) },
		func() { _, errs[1] = g.s.Create(context.Background(), doc("Bundle", "made", "made", `{}`)) },
		func() {
			defer free.Done()
			_, _, errs[2] = g.s.Update(context.Background(), "Bundle", "free", 0, spec(`{"a":1}`))
		},
		func() {
			defer free.Done()
			_, errs[3] = g.s.Create(context.Background(), doc("Bundle", "new", "new", `{}`))
		})
	ended.Wait()
	if errs[0] != nil || !errors.Is(errs[1], store.ErrExists) || errs[2] != nil || errs[3] != nil {
		t.Errorf("the errors are %v", errs)
	}
}

// The connection of a group breaks, in each way: each caller gets the true outcome of its own write, and each write is
// done once.
func TestI5EachWriteOfAGroupFindsItsOutcome(t *testing.T) {
	for _, how := range []fault{lostRequest, lostReply, lostBoth} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			var b breaker
			g := openGated(t, pgtest.DSN(t), b.use)
			t.Cleanup(leaked.close)
			must[store.Document](t)(g.s.Create(t.Context(), doc("Bundle", "old", "old", `{}`)))
			w := follow(t, g.s, store.FollowOptions{})
			b.arm("marker-1", how)
			var calls []func()
			for i := range 5 {
				kind := []store.Kind{"Bundle", "Plain", "Packed"}[i%3]
				d := doc(kind, fmt.Sprint("new-", i), fmt.Sprint("n-", i), fmt.Sprintf(`{"a":"marker-%d"}`, i))
				calls = append(calls, func() {
					if created, err := g.s.Create(context.Background(), d); err != nil || created.Version != 1 {
						t.Errorf("%s: %+v, %v", d.ID, created, err)
					}
				})
			}
			calls = append(calls, func() {
				if d, _, err := g.s.Update(context.Background(), "Bundle", "old", 1, spec(`{"a":3}`)); err != nil ||
					d.Version != 2 {
					t.Errorf("%+v, %v", d, err)
				}
			})
			var twins [2]error // of two creations of one document one fails
			for i := range twins {
				calls = append(calls, func() {
					_, twins[i] = g.s.Create(context.Background(), doc("Plain", "twin", "", `{}`))
				})
			}
			g.together(t, calls...)
			<-b.wasHit()
			if (twins[0] == nil) == (twins[1] == nil) || !errors.Is(errors.Join(twins[:]...), store.ErrExists) {
				t.Errorf("the creations of one document returned %v", twins)
			}
			w.has("Bundle/old", 2)
			w.has("Packed/new-2", 1)
			for id, want := range map[string]int{"new-0": 1, "new-3": 1, "old": 2} {
				records := must[[]store.Record](t)(g.s.History(t.Context(), store.HistoryQuery{Kind: "Bundle", ID: id}))
				if len(records) != want {
					t.Errorf("%s has %d records, want %d", id, len(records), want)
				}
			}
		})
	}
}
