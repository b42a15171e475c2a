package store

import (
	"context"
	"sync"
)

// keyedLocks is a set of locks by key. A lock exists while a goroutine holds it or waits for it.
// The zero value is ready for use by several goroutines.
type keyedLocks struct {
	mu    sync.Mutex
	locks map[string]*keyedLock
}

type keyedLock struct {
	token chan struct{} // holds one token while a goroutine holds the lock
	users int           // goroutines that hold the lock or wait for it
}

// lock waits for the lock of a key and takes it; the caller calls release once. When ctx ends
// first, lock returns its cause and no lock is taken.
func (k *keyedLocks) lock(ctx context.Context, key string) (release func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		if k.locks == nil {
			k.locks = map[string]*keyedLock{}
		}
		l = &keyedLock{token: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
	select {
	case l.token <- struct{}{}:
		return func() { <-l.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
