package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// foldEvery is how many documents a process creates or removes before it folds the tally: a list adds up what is
	// not folded.
	foldEvery = 200
	// foldBatch bounds how many rows one statement adds up.
	foldBatch = 10_000
)

// foldSQL replaces the rows of the tally by one for each kind. Rows that another process is folding are left to it. Each
// snapshot sees the rows before or their sum.
const foldSQL = `with gone as (delete from tally where ctid = any(array(select ctid from tally limit $1 for update skip locked))
		returning kind, n)
	insert into tally select kind, sum(n) from gone group by kind`

// countChange takes note of a document that was created or removed, and has the tally folded now and then.
func (s *Store) countChange() {
	if s.uncounted.Add(1)%foldEvery != 0 {
		return
	}
	select {
	case s.foldNow <- struct{}{}:
	default: // it is due already
	}
}

// foldTally folds the tally when it is due, until ctx ends.
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
