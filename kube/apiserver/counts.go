package apiserver

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/storage"
)

// countedStorage is the storage below a watch cache. It lets the cache count the objects of its resource without
// asking etcd.
//
// Upstream counts each resource twice a minute. For each count it asks etcd for the present revision and waits until
// the cache has reached that; meanwhile the cache asks etcd for its progress. Priority and fairness accepts a count
// that is up to three minutes old, so a count need not have the newest revision.
type countedStorage struct {
	storage.Interface
	isFilled atomic.Bool // a count has succeeded, so the cache has had its first list
}

// counting is the key in the context of a call that is part of a count.
type counting struct{}

// EnableResourceSizeEstimation implements [storage.Interface]. keys lists the keys in the
// cache; the context of each call to it is marked as part of a count.
func (s *countedStorage) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return s.Interface.EnableResourceSizeEstimation(func(ctx context.Context) ([]string, error) {
		all, err := keys(context.WithValue(ctx, counting{}, true))
		if err == nil {
			s.isFilled.Store(true)
		}
		return all, err
	})
}

// GetCurrentResourceVersion implements [storage.Interface]. For a count it does not ask etcd. It returns 1 until a
// count has succeeded: then the cache waits for its first list, whose revision is at least 1. Later it returns 0:
// then the cache waits for nothing.
func (s *countedStorage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	switch {
	case ctx.Value(counting{}) == nil:
		return s.Interface.GetCurrentResourceVersion(ctx)
	case s.isFilled.Load():
		return 0, nil
	}
	return 1, nil
}
