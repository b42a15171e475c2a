package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// foldEvery is how many documents a process creates, imports or removes before it folds the
	// tally. A count of a kind reads all rows that are not folded.
	foldEvery = 200
	// foldBatch is the maximum number of rows that one statement folds.
	foldBatch = 10_000
)

// foldSQL folds the tally: it replaces rows by one row for each kind with their sum. It skips rows
// that another process folds. Each snapshot sees either the rows or their sum.
const foldSQL = `with deleted as (
		delete from tally where ctid = any(array(select ctid from tally limit $1 for update skip locked))
		returning kind, n)
	insert into tally select kind, sum(n) from deleted group by kind`

// countChange counts a created, imported or removed document, and wakes foldTally after each
// foldEvery of them.
func (s *Store) countChange() {
	if s.changeCount.Add(1)%foldEvery != 0 {
		return
	}
	select {
	case s.foldNow <- struct{}{}:
	default: // foldTally has not taken the token yet
	}
}

// foldTally folds the tally for each token of countChange, until ctx ends.
func (s *Store) foldTally(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.foldNow:
		}
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		// read may send it twice, which does no harm
		err := s.read(bounded, s.pool, func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, foldSQL, foldBatch)
			return err
		})
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Debug("the tally of documents was not folded", "error", err)
		}
	}
}
