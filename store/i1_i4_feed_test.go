package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

func create(kind store.Kind, id string) func(tx *store.Tx) error {
	return func(tx *store.Tx) error {
		_, err := tx.Create(context.Background(), doc(kind, id, id, `{}`))
		return err
	}
}

func TestI1AnOpenTransactionIsNotSkippedAndDelaysNoOther(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	w := follow(t, s, store.FollowOptions{})
	w.until("it has listed", func(map[string]store.Document) bool { return w.relists == 1 })
	early := hold(t, s, create("Plain", "early")) // has the lower transaction id
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "late", "late", `{}`)))
	w.has("Plain/late", 1) // not held up
	if !w.lacks("Plain/early") {
		t.Fatal("an uncommitted document came")
	}
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "later", "later", `{}`)))
	w.has("Plain/later", 1) // the cursor has moved on, twice
	early.commit(t)
	w.has("Plain/early", 1)
}

func TestI1AnOpenTransactionDuringARelistIsNotSkipped(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	early := hold(t, s, create("Plain", "early"))
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "late", "late", `{}`)))
	w := follow(t, s, store.FollowOptions{})
	w.has("Plain/late", 1)
	early.commit(t)
	w.has("Plain/early", 1)
}

func TestI1ARolledBackTransactionIsNeverSeen(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "x", "x", `{}`)))
	w := follow(t, s, store.FollowOptions{})
	w.has("Plain/x", 1)
	h := hold(t, s, func(tx *store.Tx) error {
		if _, _, err := tx.Update(t.Context(), "Plain", "x", 0, spec(`{"a":1}`)); err != nil {
			return err
		}
		return create("Plain", "never")(tx)
	})
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "mark", "mark", `{}`)))
	w.has("Plain/mark", 1)
	h.rollback(t)
	d, changed, err := s.Update(t.Context(), "Plain", "x", 0, spec(`{"a":2}`))
	if err != nil || !changed || d.Version != 2 {
		t.Fatalf("%+v %v", d, err)
	}
	w.has("Plain/x", 2)
	if !w.lacks("Plain/never") {
		t.Fatal("a rolled back document came")
	}
}

func TestI1ALostNotificationOnlyDelays(t *testing.T) {
	dsn := pgtest.DSN(t)
	silent := func(o *store.Options) {
		o.Hooks.BeforeNotify = func() bool { return false }
		o.Hooks.LocalWake = func() bool { return false }
		o.PollInterval = 50 * time.Millisecond
	}
	writer, reader := open(t, dsn, silent), open(t, dsn, silent)
	w := follow(t, reader, store.FollowOptions{})
	w.until("it has listed", func(map[string]store.Document) bool { return w.relists == 1 })
	must[store.Document](t)(writer.Create(t.Context(), doc("Plain", "x", "x", `{}`)))
	w.has("Plain/x", 1)
}

func TestANotificationReachesAnotherProcess(t *testing.T) {
	dsn := pgtest.DSN(t)
	slow := func(o *store.Options) { o.PollInterval = time.Hour }
	writer, reader := open(t, dsn, slow), open(t, dsn, slow)
	w := follow(t, reader, store.FollowOptions{})
	w.until("it has listed", func(map[string]store.Document) bool { return w.relists == 1 })
	// The first write may happen before LISTEN, which causes one read, too. Later only the notifier
	// does.
	for i := range 5 {
		id := fmt.Sprint(i)
		must[store.Document](t)(writer.Create(t.Context(), doc("Plain", id, id, `{}`)))
		w.has("Plain/"+id, 1)
	}
}

func TestI4ASlowFollowerGetsGoneInsteadOfAGap(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	must[store.Document](t)(s.Create(ctx, doc("Plain", "x", "x", `{}`)))
	page := must[store.Page](t)(s.List(ctx, store.Query{Kind: "Plain"}))
	if err := s.Remove(ctx, "Plain", "x", 0); err != nil {
		t.Fatal(err)
	}
	// The cursor is valid as long as the tombstone exists.
	w := follow(t, s, store.FollowOptions{From: page.Cursor})
	w.until("the tombstone has come", func(map[string]store.Document) bool { return w.seen["Plain/x"] == 2 })
	w.halt()
	if n := must[int](t)(s.Compact(ctx, time.Now().Add(time.Hour))); n != 1 {
		t.Fatal(n)
	}
	w = follow(t, s, store.FollowOptions{From: page.Cursor})
	<-w.done
	if !errors.Is(w.err, store.ErrGone) {
		t.Fatal(w.err)
	}
	// A follower that listed after that continues.
	page = must[store.Page](t)(s.List(ctx, store.Query{Kind: "Plain"}))
	w = follow(t, s, store.FollowOptions{From: page.Cursor})
	must[store.Document](t)(s.Create(ctx, doc("Plain", "y", "y", `{}`)))
	w.has("Plain/y", 1)
}

// The compaction happens between two chunks of one run, so the second chunk cannot continue the
// first.
func TestI4CompactionDuringARunCausesARelist(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	chunks, compact := 0, func() {}
	s := open(t, dsn, func(o *store.Options) {
		o.ChunkSize = 2
		o.Hooks.AfterChunk = func() {
			if chunks++; chunks == 2 {
				compact()
			}
		}
	})
	names := []string{"a", "b", "c", "d", "e"}
	other := open(t, dsn)
	for _, n := range names {
		must[store.Document](t)(other.Create(ctx, doc("Plain", n, n, `{}`)))
	}
	w := follow(t, s, store.FollowOptions{Name: "slow"})
	w.until("all came", func(d map[string]store.Document) bool { return len(d) == 5 })
	w.halt()
	for _, n := range names {
		if err := other.Remove(ctx, "Plain", n, 0); err != nil {
			t.Fatal(err)
		}
	}
	chunks, compact = 1, func() { // after the first chunk of the next run
		if n := must[int](t)(other.Compact(ctx, time.Now().Add(time.Hour))); n != 5 {
			t.Errorf("compacted %d", n)
		}
	}
	w2 := follow(t, s, store.FollowOptions{Name: "slow"})
	w2.until("it lists again", func(d map[string]store.Document) bool { return w2.relists == 1 && len(d) == 0 })
}

func TestADurableCursorContinues(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	s := open(t, dsn)
	must[store.Document](t)(s.Create(ctx, doc("Plain", "x", "x", `{}`)))
	w := follow(t, s, store.FollowOptions{Name: "n"})
	w.has("Plain/x", 1)
	w.halt()
	must[store.Document](t)(s.Create(ctx, doc("Plain", "y", "y", `{}`)))
	w = follow(t, open(t, dsn), store.FollowOptions{Name: "n"})
	w.has("Plain/y", 1)
	if w.relists != 0 || !w.lacks("Plain/x") {
		t.Fatalf("it began again: %v", w.docs)
	}
}

func TestALongBacklogIsReadInChunks(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t), func(o *store.Options) { o.ChunkSize = 7 }), t.Context()
	fill := func(prefix string) {
		err := s.Tx(ctx, func(tx *store.Tx) error {
			for i := range 50 {
				if err := create("Plain", fmt.Sprint(prefix, i))(tx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fill("a")
	page := must[store.Page](t)(s.List(ctx, store.Query{Kind: "Plain"}))
	fill("b")
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "other", "", `{}`)))
	w := follow(t, s, store.FollowOptions{Kinds: []store.Kind{"Plain"}})
	w.until("all are there", func(d map[string]store.Document) bool { return len(d) == 100 })
	w = follow(t, s, store.FollowOptions{From: page.Cursor})
	w.until("the later are there", func(d map[string]store.Document) bool { return len(d) == 51 })
	if w.batches < 7 {
		t.Fatalf("in %d batches", w.batches)
	}
}

// A relist includes documents that change while it reads its chunks: a follower drops all others.
func TestARelistIncludesConcurrentChanges(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	other := open(t, dsn)
	for i := range 6 {
		must[store.Document](t)(other.Create(ctx, doc("Plain", fmt.Sprint(i), "", `{}`)))
	}
	chunks := 0
	s := open(t, dsn, func(o *store.Options) {
		o.ChunkSize = 2
		o.Hooks.AfterChunk = func() {
			if chunks++; chunks == 1 {
				if _, _, err := other.Update(ctx, "Plain", "5", 0, spec(`{"a":1}`)); err != nil {
					t.Error(err)
				}
				if err := other.Remove(ctx, "Plain", "4", 0); err != nil {
					t.Error(err)
				}
				if err := other.Remove(ctx, "Plain", "0", 0); err != nil {
					t.Error(err)
				}
			}
		}
	})
	w := follow(t, s, store.FollowOptions{})
	w.until("the relist is complete", func(d map[string]store.Document) bool { return w.listed["Plain/5"] })
	w.has("Plain/5", 2)
	w.until("the removed have gone", func(d map[string]store.Document) bool { return len(d) == 4 })
	must[store.Document](t)(other.Create(ctx, doc("Plain", "mark", "", `{}`)))
	w.has("Plain/mark", 1) // and "5" has not come twice: the watcher would have failed
}
