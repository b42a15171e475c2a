package clm

import (
	"context"
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

// keepTidy takes away, from time to time until ctx ends, what nobody can ask
// for any more. Replicas that do so at once do no harm.
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
				s.log.Warn("what is out of date was not taken away", "error", err)
			}
		}
	}
}

func (s *Server) tidy(ctx context.Context, now time.Time) error {
	ctx = withCaller(ctx, Caller{Name: itself, System: true}, "")
	if err := s.finishDeletions(ctx, now); err != nil {
		return fmt.Errorf("ending deletions that nothing keeps: %w", err)
	}
	if err := s.forgetRequests(ctx, now); err != nil {
		return fmt.Errorf("removing old requests: %w", err)
	}
	if err := s.forgetKeys(ctx, now); err != nil {
		return fmt.Errorf("removing old idempotency keys: %w", err)
	}
	if _, err := s.store.Compact(ctx, now.Add(-feedMemory)); err != nil {
		return err
	}
	_, err := s.store.TrimHistory(ctx, now.Add(-s.opts.HistoryMemory))
	return err
}
