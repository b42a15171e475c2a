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

// readSlowly starts n readers that hold a connection for the given time each, and returns their errors when all have
// ended.
func readSlowly(ctx context.Context, s *store.Store, n int, each time.Duration) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			errs[i] = s.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
				_, err := c.Exec(ctx, "select pg_sleep($1)", each.Seconds())
				return err
			})
		})
	}
	all.Wait()
	return errs
}

// A benchmark of Azure's API was answered 503: 16 connections served 256 operations, and the last request in the queue
// waited for more than AcquireTimeout. Here, too, each answer takes a fraction of AcquireTimeout, and the queue longer.
func TestABusyDatabaseIsNotDown(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.MaxConns, o.AcquireTimeout, o.QueueTimeout = 1, 6*time.Second, time.Hour
	})
	var errs []error
	done := make(chan struct{})
	go func() {
		defer close(done)
		errs = readSlowly(t.Context(), s, 35, 200*time.Millisecond) // the last one waits for 6.8 s
	}()
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping of a busy database: %v", err)
	}
	<-done
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// The only connection of the pool is in use, and the database answers the reads of a follower.
func TestTheWaitForABusyDatabaseEnds(t *testing.T) {
	t.Parallel()
	s := openImpatiently(t, pgtest.DSN(t), 200*time.Millisecond, func(o *store.Options) {
		o.MaxConns, o.QueueTimeout, o.PollInterval = 1, 500*time.Millisecond, 10*time.Millisecond
	})
	follow(t, s, store.FollowOptions{})
	release := holdConnection(t, s)
	defer release()
	if _, err := s.Get(t.Context(), "Plain", "absent"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Get returned %v", err)
	}
}

// holdConnection uses a connection of the pool until release is called.
func holdConnection(t testing.TB, s *store.Store) (release func()) {
	t.Helper()
	holding, end := make(chan struct{}), make(chan struct{})
	var held sync.WaitGroup
	held.Go(func() {
		err := s.Read(t.Context(), func(context.Context, *pgx.Conn) error { close(holding); <-end; return nil })
		if err != nil {
			t.Errorf("holding a connection: %v", err)
		}
	})
	<-holding
	return func() { close(end); held.Wait() }
}

// While no statement is answered, a caller learns after AcquireTimeout that the database is down.
func TestADatabaseThatAnswersNothingIsDown(t *testing.T) {
	t.Parallel()
	s := openImpatiently(t, pgtest.DSN(t), 200*time.Millisecond, func(o *store.Options) {
		o.MaxConns, o.QueueTimeout = 1, time.Hour
	})
	release := holdConnection(t, s)
	defer release()
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
		// With the other two connections.
		if err := errors.Join(readSlowly(t.Context(), s, 2, 100*time.Millisecond)...); err != nil {
			t.Error(err)
		}
	}
	if n := len(holding); n != 0 {
		t.Errorf("work in the background has %d connections of 4", 2+n)
	}
	close(release)
	held.Wait()
}
