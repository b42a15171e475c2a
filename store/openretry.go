package store

import (
	"context"
	"errors"
	"time"
)

const (
	// openPatience is how long Open repeats its steps while the database is unavailable: longer than a restart of
	// PostgreSQL, and shorter than a supervisor waits for a service.
	openPatience = 10 * time.Second
	// openPause is the time between two attempts.
	openPause = 250 * time.Millisecond
)

// whileUnavailable calls step until it returns nil or an error that is not ErrUnavailable, until patience is over, or
// until ctx ends. It returns the error of the last call.
func whileUnavailable(ctx context.Context, patience time.Duration, step func(context.Context) error) error {
	deadline := time.Now().Add(patience)
	for {
		err := step(ctx)
		if !errors.Is(err, ErrUnavailable) || !time.Now().Add(openPause).Before(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(openPause):
		}
	}
}
