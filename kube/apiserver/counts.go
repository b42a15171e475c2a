package apiserver

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/storage"
)

// countedStorage is the storage of a watch cache, which counts the objects of its resource from what the cache has.
//
// Upstream counts each resource twice a minute. Each time it asks etcd for the present revision and waits until the
// cache has reached it, which makes the cache ask etcd for its progress. Priority and fairness uses these counts for
// three minutes, so they need not be that fresh.
type countedStorage struct {
	storage.Interface
	isFilled atomic.Bool // the cache has had its first list
}

// counting marks the context of a count.
type counting struct{}

// EnableResourceSizeEstimation implements [storage.Interface]. The keys are those of the cache.
func (s *countedStorage) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return s.Interface.EnableResourceSizeEstimation(func(ctx context.Context) ([]string, error) {
		all, err := keys(context.WithValue(ctx, counting{}, true))
		if err == nil {
			s.isFilled.Store(true)
		}
		return all, err
	})
}

// GetCurrentResourceVersion implements [storage.Interface]. To a count it returns the revision that the cache must have
// reached: any, but the first count must wait for the first list, of which every revision is at least 1.
func (s *countedStorage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	switch {
	case ctx.Value(counting{}) == nil:
		return s.Interface.GetCurrentResourceVersion(ctx)
	case s.isFilled.Load():
		return 0, nil
	}
	return 1, nil
}
