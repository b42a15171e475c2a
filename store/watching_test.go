package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// TestI4AWatchThatIsThereBeforeItsFeedRunsMissesNothing: a service answers as
// soon as it listens, and its follower may take a moment longer on a busy
// machine.
func TestI4AWatchThatIsThereBeforeItsFeedRunsMissesNothing(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	feed := s.NewBroadcast(nil)
	if err := feed.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	done := errors.New("done")
	all := store.Watch{Query: store.Query{Kind: "Plain"}, Match: func(c *store.Change) bool { return c.Kind == "Plain" }}
	err := feed.Watch(ctx, all, func() error { return nil }, func(sight store.Sight) error {
		switch sight.Kind {
		case store.Caught:
			must[store.Document](t)(s.Create(ctx, doc("Plain", "x", "x", `{}`)))
			running.Go(func() { _ = feed.Run(ctx) })
		case store.Made:
			stop()
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Error(err)
	}
}

// TestI4AWatchOfWhichNobodyKnowsWhatItMissedIsEnded: this follower begins
// without a place of its own.
func TestI4AWatchOfWhichNobodyKnowsWhatItMissedIsEnded(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	feed := s.NewBroadcast(nil)
	sub := feed.Subscribe(func(*store.Change) bool { return true })
	defer sub.Close()
	must[store.Document](t)(s.Create(t.Context(), doc("Plain", "x", "x", `{}`)))
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	var running sync.WaitGroup
	running.Go(func() { _ = feed.Run(ctx) })
	defer running.Wait()
	defer stop()
	if _, err := sub.Next(ctx); !errors.Is(err, store.ErrGone) {
		t.Error(err)
	}
}
