package store

import (
	"context"
	"fmt"
	"time"
)

// compactBatch is the maximum number of tombstones that one transaction deletes.
const compactBatch = 5000

// removeTombstonesSQL deletes tombstones and moves the horizon in one statement, so that each read
// of the feed sees both or neither.
const removeTombstonesSQL = `with deleted as (
		delete from document where (kind, id) in (
			select kind, id from document where removed_at < $1 order by removed_at limit $2 for update skip locked)
		and removed_at < $1 returning xid),
	moved as (update store_meta set horizon = greatest(horizon, (select max(xid) from deleted)), stamp = ` + stampSQL + `
		where exists (select from deleted))
	select count(*) from deleted`

// Compact deletes the tombstones of documents that were removed before olderThan, and returns their
// number, also with an error. A follower whose cursor does not see all of these removals gets
// ErrGone, so that it never misses a removal. Several processes may call Compact at once.
func (s *Store) Compact(ctx context.Context, olderThan time.Time) (int, error) {
	total := 0
	for {
		var n int
		err := s.Tx(ctx, func(tx *Tx) error {
			return tx.QueryRow(ctx, removeTombstonesSQL, olderThan.UTC(), compactBatch).Scan(&n)
		})
		if err != nil {
			return total, fmt.Errorf("compacting: %w", err)
		}
		total += n
		if n < compactBatch {
			return total, nil
		}
	}
}
