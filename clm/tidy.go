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
	// historyMemory is how long records of changes are kept, if Options has no other time.
	historyMemory = 90 * 24 * time.Hour
)

// keepTidy runs tidy every tidyEvery until ctx ends. Several servers may do so at the same
// time.
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
				s.log.Warn("the server cannot delete old records; it tries again", "error", err)
			}
		}
	}
}

// task is one part of tidy.
type task struct {
	name string
	do   func(context.Context, time.Time) error
}

// tidy runs all tasks, which delete old records. After an error it goes on with the next
// task; it returns all errors.
func (s *Server) tidy(ctx context.Context, now time.Time) error {
	ctx = withCaller(ctx, Caller{Name: itself, System: true}, "", "")
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
		{"comparing the use of quotas", s.checkQuotas},
		{"removing old history", func(ctx context.Context, now time.Time) error {
			_, err := s.store.TrimHistory(ctx, now.Add(-s.opts.HistoryMemory))
			return err
		}},
	}
}
