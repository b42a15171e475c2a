// Package load calls a function at a fixed rate, however long each call takes.
//
// Programs below bench use it, nothing else does.
package load

import (
	"context"
	"sync"
	"time"
)

// AtRate calls f for 0 to n-1, perSecond times in a second. Slow calls run concurrently. It returns how long after its
// due time each call ended, in the order of the calls, and the error of the first call that failed. When ctx ends,
// it makes no further call, waits for the calls in flight and returns the error of ctx.
func AtRate(ctx context.Context, n int, perSecond float64, f func(i int) error) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	begun := time.Now()
	var calls sync.WaitGroup
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			failed = err
		}
	}
	for i := range n {
		due := begun.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
		select {
		case <-ctx.Done():
			calls.Wait()
			return nil, ctx.Err()
		case <-time.After(time.Until(due)):
		}
		calls.Go(func() {
			err := f(i)
			took[i] = time.Since(due)
			if err != nil {
				fail(err)
			}
		})
	}
	calls.Wait()
	return took, failed
}
