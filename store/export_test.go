package store

import (
	"context"
	"time"
)

// OpenPatiently opens a store with the limits of Patient.
func OpenPatiently(ctx context.Context, o Options) (*Store, error) { return Open(ctx, o.Patient()) }

// HoldWrites makes writes wait until the statement before them has ended, however long it runs.
func (s *Store) HoldWrites() { s.writes.patience, s.observations.patience = time.Hour, time.Hour }

// WaitingWrites returns how many creations and changes wait for a statement to end.
func (s *Store) WaitingWrites() int { return s.writes.length() }

// length returns how many items wait.
func (q *queue[T]) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}
