package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// TestContinuedWatchesDelayNoFollower reconnects 5,000 watches at once, as after a restart of their
// server or of a router before it, half of them with cursors older than the memory. A follower
// beside them is not delayed, and each watch gets the missed changes and then the new ones.
func TestContinuedWatchesDelayNoFollower(t *testing.T) {
	s := open(t, pgtest.DSN(t), func(o *store.Options) { o.ReplayChanges = 50 })
	ctx, stop := context.WithTimeout(t.Context(), 15*time.Minute)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	feed := s.NewBroadcast(nil)
	if err := feed.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = feed.Run(ctx) })
	old := must[store.Cursor](t)(s.CurrentCursor(ctx))
	write := func(from, to int) {
		for i := from; i < to; i++ {
			id := fmt.Sprint("x", i)
			must[store.Document](t)(s.Create(ctx, doc("Plain", id, id, `{}`)))
		}
	}
	write(0, 60) // more than is remembered
	recent := must[store.Cursor](t)(s.CurrentCursor(ctx))
	write(60, 70)

	// The follower beside them.
	seen := make(chan string, 1000)
	present := must[store.Cursor](t)(s.CurrentCursor(ctx)) // before the first write that the follower must see
	running.Go(func() {
		_ = s.Follow(ctx, store.FollowOptions{From: present},
			func(_ context.Context, b store.Batch) error {
				for _, d := range b.Documents {
					seen <- d.ID
				}
				return nil
			})
	})

	var caught, finished sync.WaitGroup
	done := errors.New("done")
	failed := make(chan error, reconnecting)
	began := time.Now()
	for i := range reconnecting {
		caught.Add(1)
		finished.Add(1)
		from, missed := recent, 10
		if i%2 == 0 {
			from, missed = old, 70
		}
		running.Go(func() {
			defer finished.Done()
			reached := sync.OnceFunc(caught.Done)
			defer reached()
			w := store.Watch{Query: store.Query{Kind: "Plain"}, From: from, Match: func(*store.Change) bool {
				return true
			}}
			got := map[string]int{}
			err := feed.Watch(ctx, w, func() error { return nil }, func(sight store.WatchEvent) error {
				switch {
				case sight.Kind == store.Synced:
					if len(got) < missed {
						return fmt.Errorf("%d changes of %d came before the watch had caught up", len(got), missed)
					}
					reached()
				case sight.Change == nil:
				case sight.Change.ID == "last":
					return done
				default:
					if got[sight.Change.ID]++; got[sight.Change.ID] > 1 {
						return fmt.Errorf("%s came twice", sight.Change.ID)
					}
				}
				return nil
			})
			if !errors.Is(err, done) {
				failed <- err
			}
		})
	}
	all := make(chan struct{})
	go func() { caught.Wait(); close(all) }()
	var took []time.Duration
	for i := 0; ; i++ {
		id := fmt.Sprint("beside", i)
		written := time.Now()
		must[store.Document](t)(s.Create(ctx, doc("Plain", id, id, `{}`)))
		for got := ""; got != id; {
			select {
			case got = <-seen:
			case <-ctx.Done():
				t.Fatalf("the follower did not see %s", id)
			}
		}
		took = append(took, time.Since(written))
		select {
		case <-all:
		case <-time.After(100 * time.Millisecond):
			continue
		}
		break
	}
	slices.Sort(took)
	t.Logf("%d watches caught up in %v; the follower took %v at most, %v in the middle, of %d writes",
		reconnecting, time.Since(began), took[len(took)-1], took[len(took)/2], len(took))
	// 10 ms on an idle machine. A starved follower takes as long as all watches together, at each write; one slow write
	// is a pause of the machine.
	if median := took[len(took)/2]; median > 5*time.Second {
		t.Errorf("the follower took %v in the middle", median)
	}
	must[store.Document](t)(s.Create(ctx, doc("Plain", "last", "last", `{}`)))
	finished.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
}

// A watch that continues from the database calls open before the first handle, and ends with the error of open: what
// open writes to a client is an older place than that of an event.
func TestAWatchFromTheDatabaseOpensBeforeItsFirstEvent(t *testing.T) {
	s := open(t, pgtest.DSN(t), func(o *store.Options) { o.ReplayChanges = 1 })
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	feed := s.NewBroadcast(nil)
	if err := feed.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = feed.Run(ctx) })
	done, refused := errors.New("done"), errors.New("the client is gone")
	old := must[store.Cursor](t)(s.CurrentCursor(ctx))
	for i := range 5 { // more than is remembered
		id := fmt.Sprint("x", i)
		must[store.Document](t)(s.Create(ctx, doc("Plain", id, id, `{}`)))
	}
	for _, matches := range []bool{true, false} {
		w := store.Watch{Query: store.Query{Kind: "Plain"}, From: old,
			Match: func(*store.Change) bool { return matches }}
		var calls []string
		err := feed.Watch(ctx, w, func() error { calls = append(calls, "open"); return nil },
			func(e store.WatchEvent) error {
				calls = append(calls, "handle")
				if e.Kind == store.Synced {
					return done
				}
				return nil
			})
		if !errors.Is(err, done) || calls[0] != "open" || slices.Contains(calls[1:], "open") {
			t.Errorf("changes match %v: %v, %v", matches, calls, err)
		}
		err = feed.Watch(ctx, w, func() error { return refused }, func(e store.WatchEvent) error {
			t.Errorf("an event after open has failed: %v", e)
			return nil
		})
		if !errors.Is(err, refused) {
			t.Errorf("after open has failed: %v", err)
		}
	}
}
