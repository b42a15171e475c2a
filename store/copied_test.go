package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// TestI1CopiedRowsReachFollowers: an operator copies rows into the table of the documents (COPY) while a follower
// runs. The follower gets each of them, the tally counts them, and the store changes and removes them as its own.
func TestI1CopiedRowsReachFollowers(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	s := open(t, dsn)
	must[store.Document](t)(s.Create(ctx, doc("Plain", "made", "made", `{"a":1}`)))
	w := follow(t, s, store.FollowOptions{})
	w.has("Plain/made", 1)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const copies = 1200 // more than two chunks of the feed, of one transaction
	columns := []string{"kind", "id", "scope", "name", "version", "generation", "spec", "status", "head", "wire",
		"created_at", "updated_at", "token"}
	made := must[store.Document](t)(s.Get(ctx, "Plain", "made"))
	rows := pgx.CopyFromSlice(copies, func(i int) ([]any, error) {
		id := fmt.Sprint("copy-", i)
		return []any{"Plain", id, "s", id, int64(7), int64(3), []byte(made.Spec), []byte(made.Status), []byte{},
			[]byte{}, made.CreatedAt, made.UpdatedAt, int64(i)}, nil
	})
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"document"}, columns, rows)
	if err != nil || n != copies {
		t.Fatal(n, err)
	}
	for _, i := range []int{0, copies / 2, copies - 1} {
		w.has(fmt.Sprint("Plain/copy-", i), 7)
	}
	w.until("each copy has come", func(docs map[string]store.Document) bool { return len(docs) == copies+1 })
	page := must[store.Page](t)(s.List(ctx, store.Query{Kind: "Plain", Limit: 1, Count: true,
		Deletion: store.WithDeleting}))
	if page.Total != copies+1 {
		t.Errorf("the list has a total of %d, want %d", page.Total, copies+1)
	}
	if _, changed, err := s.Update(ctx, "Plain", "copy-1", 7, spec(`{"a":2}`)); err != nil || !changed {
		t.Fatal(changed, err)
	}
	w.has("Plain/copy-1", 8)
	if err := s.Remove(ctx, "Plain", "copy-2", 0); err != nil {
		t.Fatal(err)
	}
	w.until("a removed copy is gone", func(docs map[string]store.Document) bool {
		_, there := docs["Plain/copy-2"]
		return !there
	})
}
