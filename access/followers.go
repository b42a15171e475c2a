package access

import "sync/atomic"

// followers are the followers of the feed that keep a cache up to date. Without one, nobody brings a change into the
// cache.
type followers struct{ count atomic.Int64 }

// add counts a follower until stop is called.
func (f *followers) add() (stop func()) {
	f.count.Add(1)
	return func() { f.count.Add(-1) }
}
