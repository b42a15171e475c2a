package store_test

import (
	"errors"
	"slices"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

func TestAListOfDocumentsAfterACursor(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	list := func(unseen store.Cursor) store.Page {
		return must[store.Page](t)(s.List(ctx, store.Query{Kind: "Plain", ChangedSince: unseen}))
	}
	expect := func(what string, unseen store.Cursor, want ...string) {
		t.Helper()
		got := ids(list(unseen))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		must[store.Document](t)(s.Create(ctx, doc("Plain", id, "", `{}`)))
	}
	cursor := list("").Cursor
	expect("without a cursor", "", "a", "b", "c")
	expect("at the end", cursor)

	// A transaction that was under way is not seen, whenever it began.
	begun, commit, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- s.Tx(ctx, func(tx *store.Tx) error {
			if _, _, err := tx.Update(ctx, "Plain", "a", 0, spec(`{"x": 1}`)); err != nil {
				return err
			}
			close(begun)
			<-commit
			return nil
		})
	}()
	<-begun
	must[store.Document](t)(s.Create(ctx, doc("Plain", "d", "", `{}`)))
	during := list("").Cursor
	close(commit)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "Plain", "b", 0); err != nil {
		t.Fatal(err)
	}
	expect("since the beginning", cursor, "a", "d")
	expect("since the open transaction", during, "a")
	expect("of another life", "other.1:1:", "a", "c", "d")
}

func TestAPartHasSeparateTables(t *testing.T) {
	dsn := pgtest.DSN(t)
	s, ctx := open(t, dsn), t.Context()
	steps := []string{"create table side (x int)", "alter table side add y int"}
	for _, n := range []int{1, 2, 2} {
		if err := s.Migrate(ctx, "part", steps[:n]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Migrate(ctx, "part", steps[:1]); !errors.Is(err, store.ErrNewer) {
		t.Errorf("by an older binary: %v", err)
	}
	err := s.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, "insert into side values (1, 2)")
		return err
	})
	if err != nil {
		t.Error(err)
	}
	open(t, dsn) // the store's own parts are as they were
}
