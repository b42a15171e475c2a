package apiserver

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"k8s.io/apiserver/pkg/storage/cacher"
)

// boundHistory sets how many events the watch cache of a cacher keeps at most, for watches that begin at an earlier
// resource version. A watch from before the oldest event is refused as expired (410), and its client lists again.
//
// Upstream has no setting for it: each cache keeps the events of the last 75 s, at most 102,400, and keeps them until
// later events of its resource replace them. Each event holds its object, so updates of large objects would fill the
// memory of a small plane. boundHistory sets a field of upstream's that is not exported, under its lock.
// If a later version has no such field, a test fails, and so does the start of the plane.
func boundHistory(c *cacher.Cacher, events int) error {
	if err := setUpperBound(reflect.ValueOf(c), events); err != nil {
		return fmt.Errorf("bounding the events of a watch cache: this version of Kubernetes differs: %w", err)
	}
	return nil
}

// setUpperBound sets the field watchCache.upperBoundCapacity of the struct that c points to.
func setUpperBound(c reflect.Value, events int) error {
	cache := c.Elem().FieldByName("watchCache")
	if !cache.IsValid() || cache.Kind() != reflect.Pointer || cache.IsNil() || cache.Elem().Kind() != reflect.Struct {
		return errors.New("a cacher has no watchCache")
	}
	lock := cache.Elem().FieldByName("RWMutex")
	if !lock.IsValid() || lock.Type() != reflect.TypeFor[sync.RWMutex]() {
		return errors.New("a watchCache has no RWMutex")
	}
	bound := cache.Elem().FieldByName("upperBoundCapacity")
	if !bound.IsValid() || bound.Type() != reflect.TypeFor[int]() {
		return errors.New("a watchCache has no upperBoundCapacity that is an int")
	}
	mu := (*sync.RWMutex)(unsafe.Pointer(lock.UnsafeAddr()))
	mu.Lock()
	defer mu.Unlock()
	*(*int)(unsafe.Pointer(bound.UnsafeAddr())) = events
	return nil
}
