package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"

	"github.com/google/go-cmp/cmp"
)

func ids(p store.Page) (ids []string) {
	for _, d := range p.Documents {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestAListIsPagedByKeyAndByNumberInTheSameOrder(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	for i := range 25 {
		d := doc("Plain", fmt.Sprintf("%02d", i), "", fmt.Sprintf(`{"rank": %d, "color": %q}`, i%4,
			[]string{"red", "blue"}[i%2]))
		if i%5 == 0 {
			d.Spec = json.RawMessage(`{"color": null}`) // no rank: comes last
		}
		must[store.Document](t)(s.Create(ctx, d))
	}
	for _, desc := range []bool{false, true} {
		q := store.Query{Kind: "Plain", Count: true, OrderBy: []store.Order{
			{Expr: "(d.spec->>'rank')::int", Type: "int", Desc: desc}, {Expr: "d.spec->>'color'", Type: "text",
				Desc: !desc}}}
		q.Limit = 100
		whole := must[store.Page](t)(s.List(ctx, q))
		if len(whole.Documents) != 25 || whole.Total != 25 || whole.Next != "" {
			t.Fatalf("%d of %d", len(whole.Documents), whole.Total)
		}
		if last := whole.Documents[24]; strings.Contains(string(last.Spec), "rank") {
			t.Fatalf("nulls are not last: %s", last.Spec)
		}
		var byKey, byNumber []string
		q.Limit = 4
		for {
			p := must[store.Page](t)(s.List(ctx, q))
			byKey = append(byKey, ids(p)...)
			if p.Total != 25 {
				t.Fatal(p.Total)
			}
			if q.After = p.Next; q.After == "" {
				break
			}
		}
		q.After = ""
		for ; q.Offset < 25; q.Offset += 4 {
			byNumber = append(byNumber, ids(must[store.Page](t)(s.List(ctx, q)))...)
		}
		for how, got := range map[string][]string{"key": byKey, "number": byNumber} {
			if diff := cmp.Diff(ids(whole), got); diff != "" {
				t.Errorf("by %s: %s", how, diff)
			}
		}
		q.Offset = 100
		if p := must[store.Page](t)(s.List(ctx, q)); len(p.Documents) != 0 || p.Total != 25 {
			t.Fatalf("behind the end: %+v", p)
		}
	}
}

// An empty text is another key than null: a list goes on after it.
func TestAListGoesOnAfterAnEmptyKey(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	for i, color := range []string{"", "", "blue", "red"} {
		must[store.Document](t)(s.Create(ctx, doc("Plain", fmt.Sprint(i), "", fmt.Sprintf(`{"color": %q}`, color))))
	}
	q := store.Query{Kind: "Plain", Limit: 1, OrderBy: []store.Order{{Expr: "d.spec->>'color'", Type: "text"}}}
	var got []string
	for {
		p := must[store.Page](t)(s.List(ctx, q))
		got = append(got, ids(p)...)
		if q.After = p.Next; q.After == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAListSelectsDocuments(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	for i := range 6 {
		d := doc("Bundle", fmt.Sprint(i), "", fmt.Sprintf(`{"n": %d}`, i))
		d.Scope = fmt.Sprint("scope", i%2)
		must[store.Document](t)(s.Create(ctx, d))
	}
	when := time.Now()
	if _, _, err := s.Update(ctx, "Bundle", "2", 0, func(d *store.Document) error {
		d.DeletedAt = &when
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "Bundle", "3", 0); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		q    store.Query
		want []string
	}{
		"all":      {store.Query{}, []string{"0", "1", "4", "5"}},
		"deleting": {store.Query{Deletion: store.OnlyDeleting}, []string{"2"}},
		"both":     {store.Query{Deletion: store.WithDeleting}, []string{"0", "1", "2", "4", "5"}},
		"scope":    {store.Query{Scope: "scope0"}, []string{"0", "4"}},
		"where": {store.Query{Where: store.Fragment{SQL: "(d.spec->>'n')::int > $1", Args: []any{3}}},
			[]string{"4", "5"}},
		"together": {store.Query{Scope: "scope1", Where: store.Fragment{SQL: "d.spec @> $1 or d.id = $2",
			Args: []any{`{"n": 4}`, "5"}}}, []string{"5"}},
		"other": {store.Query{Kind: "Plain"}, nil},
	} {
		if c.q.Kind == "" {
			c.q.Kind = "Bundle"
		}
		c.q.Count = true
		p := must[store.Page](t)(s.List(ctx, c.q))
		if diff := cmp.Diff(c.want, ids(p)); diff != "" || p.Total != len(c.want) || p.Cursor == "" {
			t.Errorf("%s: %s %+v", what, diff, p)
		}
	}
	var single []string
	p := must[store.Page](t)(s.List(ctx, store.Query{Kind: "Bundle", WireOnly: true, Limit: 1}))
	if d := p.Documents[0]; d.Spec != nil || d.Status != nil || !strings.Contains(string(d.Wire), `"id":"0"`) {
		t.Fatalf("%+v", d)
	}
	// Pages that are bounded by bytes have something each, and lose nothing.
	for q := (store.Query{Kind: "Bundle", Bytes: 1, Deletion: store.WithDeleting}); ; {
		p := must[store.Page](t)(s.List(ctx, q))
		if len(p.Documents) != 1 {
			t.Fatalf("%d documents in a page of one", len(p.Documents))
		}
		if single = append(single, p.Documents[0].ID); p.Next == "" {
			break
		}
		q.After = p.Next
	}
	if whole := ids(must[store.Page](t)(s.List(ctx, store.Query{Kind: "Bundle",
		Deletion: store.WithDeleting}))); !slices.Equal(single, whole) {
		t.Errorf("one by one %v, all %v", single, whole)
	}
	for _, after := range []string{"nonsense", "W10", "WyJhIiwiYiJd"} {
		if _, err := s.List(ctx, store.Query{Kind: "Bundle", After: after}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", after, err)
		}
	}
}

func TestTheHistoryRecordsEachChange(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	ctx := store.WithActor(t.Context(), store.Actor{Principal: "arn:alice", Account: "1", RequestID: "r"})
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "x", "x", `{"a": 1}`)))
	err := s.Tx(store.WithActor(ctx, store.Actor{Principal: "arn:bob"}), func(tx *store.Tx) error {
		bob := store.WithActor(ctx, store.Actor{Principal: "arn:bob"})
		if _, _, err := tx.Update(bob, "Bundle", "x", 0, status(`{"s": 1}`)); err != nil {
			return err
		}
		return tx.Record(bob, "approve", "Bundle", "x", "s", json.RawMessage(`{"why": "fine"}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	when := time.Now()
	if _, _, err := s.Update(ctx, "Bundle", "x", 0, func(d *store.Document) error {
		d.DeletedAt = &when
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "Bundle", "x", 0); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range must[[]store.Record](t)(s.History(ctx, store.HistoryQuery{Kind: "Bundle", ID: "x"})) {
		got = append(got, fmt.Sprintf("%s %s v%d g%d spec=%s status=%s note=%s", r.Actor.Principal, r.Action, r.Version,
			r.Generation, r.Spec, r.Status, r.Note))
	}
	slices.Reverse(got)
	want := []string{
		`arn:alice create v1 g1 spec={"a": 1} status={} note=`,
		`arn:bob update v2 g1 spec= status={"s": 1} note=`,
		`arn:bob approve v0 g0 spec= status= note={"why": "fine"}`,
		`arn:alice delete v3 g1 spec= status= note=`,
		`arn:alice remove v4 g1 spec= status= note=`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}
