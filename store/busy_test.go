package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// readSlowly starts n readers that hold a connection for 100 ms each, and returns their errors when all have ended.
func readSlowly(ctx context.Context, s *store.Store, n int) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			errs[i] = s.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
				_, err := c.Exec(ctx, "select pg_sleep(0.1)")
				return err
			})
		})
	}
	all.Wait()
	return errs
}

// A benchmark of Azure's API was answered 503: 16 connections served 256 operations, and the last request in the queue
// waited for more than AcquireTimeout.
func TestABusyDatabaseIsNotDown(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.MaxConns, o.AcquireTimeout, o.QueueTimeout = 1, 2*time.Second, time.Minute
	})
	var errs []error
	done := make(chan struct{})
	go func() {
		defer close(done)
		errs = readSlowly(t.Context(), s, 30) // the last one waits for 2.9 s
	}()
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping of a busy database: %v", err)
	}
	<-done
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestTheWaitForABusyDatabaseEnds(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.MaxConns, o.AcquireTimeout, o.QueueTimeout = 1, 200*time.Millisecond, 500*time.Millisecond
	})
	refused := 0
	for _, err := range readSlowly(t.Context(), s, 30) {
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
		if err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("30 readers of 100 ms each have waited for 3 s, and the limit is 500 ms")
	}
}

// While no statement is answered, a caller learns after AcquireTimeout that the database is down.
func TestADatabaseThatAnswersNothingIsDown(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.MaxConns, o.AcquireTimeout, o.QueueTimeout = 1, 200*time.Millisecond, time.Hour
	})
	holding, release := make(chan struct{}), make(chan struct{})
	var held sync.WaitGroup
	held.Go(func() {
		_ = s.Read(t.Context(), func(context.Context, *pgx.Conn) error { close(holding); <-release; return nil })
	})
	defer held.Wait()
	defer close(release)
	<-holding
	if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Ping returned %v", err)
	}
	if _, err := s.Get(t.Context(), "Plain", "absent"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Get returned %v", err)
	}
}

// Work in the background leaves half of the connections to requests.
func TestWorkInTheBackgroundLeavesConnections(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.MaxConns, o.AcquireTimeout, o.QueueTimeout = 4, time.Minute, time.Hour
	})
	holding, release := make(chan struct{}, 8), make(chan struct{})
	var held sync.WaitGroup
	for range 8 {
		held.Go(func() {
			err := s.Read(store.InBackground(t.Context()), func(context.Context, *pgx.Conn) error {
				holding <- struct{}{}
				<-release
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	<-holding
	<-holding
	for range 10 {
		if err := errors.Join(readSlowly(t.Context(), s, 2)...); err != nil { // with the other two connections
			t.Error(err)
		}
	}
	if n := len(holding); n != 0 {
		t.Errorf("work in the background has %d connections of 4", 2+n)
	}
	close(release)
	held.Wait()
}
