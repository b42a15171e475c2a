package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"
)

// pollEvery is the interval between two looks at a file. kubelet notifies nobody when it has made one.
const pollEvery = 20 * time.Millisecond

// exists returns a channel that gets nil once a file exists, and an error when that cannot be known or ctx ends.
func exists(ctx context.Context, path string) <-chan error {
	result := make(chan error, 1)
	go func() {
		ticker := time.NewTicker(pollEvery)
		defer ticker.Stop()
		for {
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				result <- err
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				result <- context.Cause(ctx)
				return
			}
		}
	}()
	return result
}
