package store_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

func TestAStreamSendsTheListInBatches(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	for i := range 40 {
		d := doc("Plain", fmt.Sprintf("%02d", (i*7)%40), "", fmt.Sprintf(`{"rank": %d, "filler": %q}`, i%4,
			strings.Repeat("x", 100_000)))
		must[store.Document](t)(s.Create(ctx, d))
	}
	for _, q := range []store.Query{
		{Kind: "Plain", Limit: 100},
		{Kind: "Plain", Limit: 40},
		{Kind: "Plain", Limit: 7, Offset: 14},
		{Kind: "Plain", Limit: 7, Offset: 39},
		{Kind: "Plain", Limit: 7, Offset: 40},
		{Kind: "Plain"},
		{Kind: "Plain", Limit: 100, OrderBy: []store.Order{{Expr: "(d.spec->>'rank')::int", Type: "int", Desc: true}}},
		{Kind: "Plain", Limit: 3, Where: store.Fragment{SQL: "(d.spec->>'rank')::int > $1", Args: []any{1}},
			WireOnly: true},
		{Kind: "Plain", Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{[]string{}}}},
		{Kind: "Plain", Scope: "none"},
	} {
		q.Count = true
		want := must[store.Page](t)(s.List(ctx, q))
		var got store.Page
		begun, batches, size := 0, 0, 0
		err := s.Stream(ctx, q, func(x store.Extent) error {
			begun++
			got.Total, size = x.Total, x.Size
			return nil
		}, func(docs []store.Document) error {
			batches++
			got.Documents = append(got.Documents, docs...)
			return nil
		})
		if err != nil || begun != 1 || size != len(got.Documents) {
			t.Fatalf("%+v: %v, begun %d times, %d documents of %d", q, err, begun, len(got.Documents), size)
		}
		if !reflect.DeepEqual(want.Documents, got.Documents) || want.Total != got.Total {
			t.Errorf("%+v: %v of %d, want %v of %d", q, ids(got), got.Total, ids(want), want.Total)
		}
		if !q.WireOnly && len(got.Documents) == 40 && batches == 1 {
			t.Error("4 MB came in one batch")
		}
	}
}

// TestAStreamReadsOneSnapshot changes documents while they are streamed.
func TestAStreamReadsOneSnapshot(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	for i := range 30 {
		must[store.Document](t)(s.Create(ctx, doc("Plain", fmt.Sprintf("%02d", i), "",
			fmt.Sprintf(`{"state": "old", "filler": %q}`, strings.Repeat("x", 200_000)))))
	}
	var seen []string
	err := s.Stream(ctx, store.Query{Kind: "Plain", Limit: 100}, func(store.Extent) error { return nil },
		func(docs []store.Document) error {
			for _, d := range docs {
				if !strings.Contains(string(d.Spec), `"old"`) {
					t.Errorf("%s is new", d.ID)
				}
				seen = append(seen, d.ID)
			}
			if len(seen) > len(docs) {
				return nil
			}
			for i := range 30 {
				id := fmt.Sprintf("%02d", i)
				if i%2 == 0 {
					if err := s.Remove(ctx, "Plain", id, 0); err != nil {
						return err
					}
					continue
				}
				if _, _, err := s.Update(ctx, "Plain", id, 0, func(d *store.Document) error {
					d.Spec = []byte(`{"state":"new"}`)
					return nil
				}); err != nil {
					return err
				}
			}
			return nil
		})
	if err != nil || len(seen) != 30 || !slices.IsSorted(seen) {
		t.Errorf("%v: %v", err, seen)
	}
}

func TestAStreamEndsWhenItsReaderStops(t *testing.T) {
	const connections = 4
	s, ctx := open(t, pgtest.DSN(t), func(o *store.Options) { o.MaxConns = connections }), t.Context()
	for i := range 30 {
		must[store.Document](t)(s.Create(ctx, doc("Plain", fmt.Sprint(i), "", fmt.Sprintf(`{"filler": %q}`,
			strings.Repeat("x", 200_000)))))
	}
	enough := errors.New("enough")
	q := store.Query{Kind: "Plain", Limit: 100}
	ok := func(store.Extent) error { return nil }
	for range 5 * connections { // a stream that kept its connection would leave none
		if err := s.Stream(ctx, q, ok, func([]store.Document) error { return enough }); err != enough {
			t.Fatal(err)
		}
		if err := s.Stream(ctx, q, func(store.Extent) error { return enough }, nil); err != enough {
			t.Fatal(err)
		}
	}
	if err := s.Stream(ctx, store.Query{Kind: "Plain", Where: store.Fragment{SQL: "d.nothing"}}, ok, nil); err == nil {
		t.Error("a query that is wrong gives no error")
	}
	if err := s.Stream(ctx, store.Query{Kind: "Nope"}, ok, nil); !errors.Is(err, store.ErrInvalid) {
		t.Error(err)
	}
}
