package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// foldEvery is how many documents a process creates, imports or removes before it folds the tally: each count of a
	// kind adds up the rows that are not folded.
	foldEvery = 200
	// foldBatch bounds how many rows one statement adds up.
	foldBatch = 10_000
)

// foldSQL replaces rows of the tally by one row for each kind. It skips rows that another process folds. Each snapshot
// sees either the rows or their sum.
const foldSQL = `with gone as (delete from tally where ctid = any(array(select ctid from tally limit $1 for update skip locked))
		returning kind, n)
	insert into tally select kind, sum(n) from gone group by kind`

// countChange counts a created, imported or removed document, and wakes foldTally after each foldEvery of them.
func (s *Store) countChange() {
	if s.uncounted.Add(1)%foldEvery != 0 {
		return
	}
	select {
	case s.foldNow <- struct{}{}:
	default: // foldTally has not yet taken the last wake
	}
}

// foldTally folds the tally after each wake of countChange, until ctx ends.
func (s *Store) foldTally(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.foldNow:
		}
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		err := s.read(bounded, s.pool, func(ctx context.Context, c *pgx.Conn) error { // it may be sent again
			_, err := c.Exec(ctx, foldSQL, foldBatch)
			return err
		})
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Debug("the tally of documents was not folded", "error", err)
		}
	}
}
