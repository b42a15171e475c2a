package clm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	tidyEvery = 10 * time.Minute
	// keyMemory is how long an Idempotency-Key is known, feedMemory how old the
	// cursor of a watch may be.
	keyMemory  = 24 * time.Hour
	feedMemory = 24 * time.Hour
	// historyMemory is for how long it is known who changed what, if nobody says otherwise.
	historyMemory = 90 * 24 * time.Hour
)

// keepTidy removes, from time to time until ctx ends, what nobody can ask for any
// more. Replicas that do so at once do no harm.
func (s *Server) keepTidy(ctx context.Context) {
	tick := time.NewTimer(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			tick.Reset(tidyEvery)
			if err := s.tidy(ctx, now); err != nil && ctx.Err() == nil {
				s.log.Warn("tidying up failed", "error", err)
			}
		}
	}
}

// task is one part of tidying up.
type task struct {
	name string
	do   func(context.Context, time.Time) error
}

// tidy does all tasks. One that fails holds up no other; it is done again the
// next time.
func (s *Server) tidy(ctx context.Context, now time.Time) error {
	ctx = withCaller(ctx, Caller{Name: itself, System: true}, "")
	var failed []error
	for _, t := range s.tasks() {
		if err := t.do(ctx, now); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return errors.Join(failed...)
}

func (s *Server) tasks() []task {
	return []task{
		{"ending deletions that nothing keeps", s.finishDeletions},
		{"removing old requests", s.forgetRequests},
		{"removing old idempotency keys", s.forgetKeys},
		{"removing old tombstones", func(ctx context.Context, now time.Time) error {
			_, err := s.store.Compact(ctx, now.Add(-feedMemory))
			return err
		}},
		{"removing old history", func(ctx context.Context, now time.Time) error {
			_, err := s.store.TrimHistory(ctx, now.Add(-s.opts.HistoryMemory))
			return err
		}},
	}
}
