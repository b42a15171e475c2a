package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// TestI4AWatchOpenedBeforeTheFeedMissesNoChange: a service answers as
// soon as it listens, and its follower may take a moment longer on a busy
// machine.
func TestI4AWatchOpenedBeforeTheFeedMissesNoChange(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	feed := s.NewBroadcast(nil)
	if err := feed.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	done := errors.New("done")
	all := store.Watch{Query: store.Query{Kind: "Plain"}, Match: func(c *store.Change) bool {
		return c.Kind == "Plain"
	}}
	err := feed.Watch(ctx, all, func() error { return nil }, func(sight store.WatchEvent) error {
		switch sight.Kind {
		case store.Synced:
			must[store.Document](t)(s.Create(ctx, doc("Plain", "x", "x", `{}`)))
			running.Go(func() { _ = feed.Run(ctx) })
		case store.Created:
			stop()
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Error(err)
	}
}

// TestI4AWatchWithAnUnknownGapIsEnded: this follower begins
// without a place of its own.
func TestI4AWatchWithAnUnknownGapIsEnded(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	feed := s.NewBroadcast(nil)
	sub := feed.Subscribe(func(*store.Change) bool { return true })
	defer sub.Close()
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "x", "x", `{}`)))
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	var running sync.WaitGroup
	running.Go(func() { _ = feed.Run(ctx) })
	defer running.Wait()
	defer stop()
	if _, err := sub.Next(ctx); !errors.Is(err, store.ErrGone) {
		t.Error(err)
	}
}

// TestAWatchSendsEachChangeOnce: the feed has read, and is slow to hand over; then a document is made,
// and a watch begins that lists it. The run of the feed that brings it began after the list was read,
// and still it is no news.
func TestAWatchSendsEachChangeOnce(t *testing.T) {
	var reading atomic.Bool
	read, goOn := make(chan struct{}), make(chan struct{})
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.Hooks.AfterChunk = func() {
			if reading.CompareAndSwap(true, false) {
				read <- struct{}{}
				<-goOn
			}
		}
	})
	feed := s.NewBroadcast(nil)
	if err := feed.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "before", "before", `{}`)))
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	reading.Store(true)
	running.Go(func() { _ = feed.Run(ctx) })
	<-read
	must[store.Document](t)(s.Create(ctx, doc("Plain", "x", "x", `{}`)))

	done := errors.New("done")
	seen := map[string]int{}
	all := store.Watch{Query: store.Query{Kind: "Plain"}, Match: func(*store.Change) bool { return true }}
	err := feed.Watch(ctx, all, func() error { return nil }, func(sight store.WatchEvent) error {
		switch {
		case sight.Kind == store.Synced:
			close(goOn)
			running.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					id := fmt.Sprint("after", i)
					if _, err := s.Create(ctx, doc("Plain", id, id, `{}`)); err != nil {
						return
					}
				}
			})
		case sight.Change != nil:
			if seen[sight.Change.ID]++; seen[sight.Change.ID] > 1 {
				return fmt.Errorf("%s was shown twice", sight.Change.ID)
			}
			if len(seen) == 20 {
				return done
			}
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Error(err)
	}
	stop()
}
