package local

import (
	"context"
	"errors"
	"time"
)

// awaitReady waits until each of the named processes has been ready once. It returns false when ctx
// ends first.
func (s *supervisor) awaitReady(ctx context.Context, names []string) bool {
	for _, name := range names {
		for isReady := false; !isReady; {
			s.mu.Lock()
			process := s.processes[name]
			s.mu.Unlock()
			if process == nil {
				break
			}
			select {
			case <-ctx.Done():
				return false
			case <-process.ready:
				isReady = true
			case <-process.done: // removed, or replaced by another
				if ctx.Err() != nil {
					return false
				}
			}
		}
	}
	return true
}

// awaitServing probes the process until it serves and its Finish has succeeded. It returns false
// when the process or ctx ends first.
func (s *supervisor) awaitServing(ctx context.Context, spec Spec, exited chan error) bool {
	if spec.Ready == nil {
		return true
	}
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	// A probe that hangs ends with the process.
	probing, stop := context.WithCancel(ctx)
	watching := make(chan struct{})
	defer func() { <-watching }()
	go func() {
		defer close(watching)
		select {
		case <-probing.Done():
		case err := <-exited:
			exited <- err
			stop()
		}
	}()
	defer stop()
	limit := firstProbe
	for {
		err := callWithLimit(probing, limit, spec.Ready)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			limit = min(2*limit, maxProbe)
		case err == nil && spec.Finish != nil:
			err = callWithLimit(probing, finishLimit, spec.Finish)
		}
		if err == nil {
			return true
		}
		select {
		case <-probing.Done(): // ctx ended, or the process
			return false
		case <-ticker.C:
		}
	}
}

// callWithLimit calls f with a context that ends after limit.
func callWithLimit(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx)
}
