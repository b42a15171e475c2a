package adapter

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestThePoolRunsOneRunPerResourceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log []string
		running := map[string]int{}
		most := 0
		p := newPool(3, time.Minute, func(_ context.Context, x task) ending {
			mu.Lock()
			running[x.ID]++
			if running[x.ID] > 1 {
				t.Errorf("%s runs twice at once", x.ID)
			}
			most = max(most, len(running))
			log = append(log, fmt.Sprint(x.ID, x.Generation))
			mu.Unlock()
			<-time.After(time.Second) // of the bubble
			mu.Lock()
			delete(running, x.ID)
			mu.Unlock()
			return succeeded
		})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { p.Run(ctx) })
		for i := range 9 {
			p.enqueue(hint{task: of(fmt.Sprint("r", i), 1)})
		}
		for g := range int64(5) {
			p.enqueue(hint{task: of("r0", g+2)})
		}
		synctest.Wait()
		<-time.After(10 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(log) != 10 || most != 3 {
			t.Errorf("%d runs, %d at once: %v", len(log), most, log)
		}
		newest := false
		for _, l := range log {
			newest = newest || l == "r06"
		}
		if !newest {
			t.Errorf("the newest event was not run: %v", log)
		}
		cancel()
		done.Wait()
		p.enqueue(hint{task: of("late", 1)}) // the pool has stopped; enqueue does not block
	})
}

func TestThePoolRetriesAndStopsWithGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := make(chan time.Time, 100)
		var ended error
		p := newPool(2, 5*time.Second, func(ctx context.Context, x task) ending {
			runs <- time.Now()
			if x.ID == "long" {
				<-ctx.Done()
				ended = context.Cause(ctx)
			}
			return failed
		})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { p.Run(ctx) })
		p.enqueue(hint{task: of("bad", 1)})
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if n := len(runs); n != 1+maxRetries {
			t.Errorf("%d runs, want %d", n, 1+maxRetries)
		}
		p.enqueue(hint{task: of("long", 1)})
		synctest.Wait()
		stopped := time.Now()
		cancel()
		done.Wait()
		if took := time.Since(stopped); took != 5*time.Second || ended != errStopping {
			t.Errorf("stopped after %s with %v", took, ended)
		}
	})
}

// A run may enqueue other runs, because an apply delivers events of a watch; also during shutdown.
func TestARunThatEnqueuesDoesNotBlockShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p *pool
		p = newPool(1, time.Minute, func(ctx context.Context, x task) ending {
			<-time.After(time.Second)
			p.enqueue(hint{task: of("b", 1), watched: true})
			return succeeded
		})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { p.Run(ctx) })
		p.enqueue(hint{task: of("a", 1)})
		synctest.Wait()
		stopped := time.Now()
		cancel()
		done.Wait()
		if took := time.Since(stopped); took != time.Second {
			t.Errorf("stopped after %s", took)
		}
	})
}
