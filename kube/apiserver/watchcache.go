package apiserver

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"atoll.dev/kube/idle"
)

// quietCaches is a RESTOptionsGetter that gives the watch caches of another one an [idle.Clock], a storage that is
// not asked in order to count objects, and a bound of the events that they keep. Each cache has a timer of a second
// for bookmarks, and a plane has some fifty caches: with upstream's clock an idle plane wakes fifty times a second for
// them, with this one once.
type quietCaches struct {
	generic.RESTOptionsGetter
	sizes  map[schema.GroupResource]int // 0: the resource has no watch cache
	clock  idle.Clock
	events int // that each cache keeps at most
}

// newQuietCaches returns a function that wraps the getters of one API server.
func newQuietCaches(o *options.EtcdOptions, c idle.Clock, events int) (
	func(generic.RESTOptionsGetter) generic.RESTOptionsGetter, error) {
	sizes, err := options.ParseWatchCacheSizes(o.WatchCacheSizes)
	if err != nil {
		return nil, err
	}
	return func(g generic.RESTOptionsGetter) generic.RESTOptionsGetter { return quietCaches{g, sizes, c, events} }, nil
}

// GetRESTOptions implements [generic.RESTOptionsGetter].
func (q quietCaches) GetRESTOptions(r schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := q.RESTOptionsGetter.GetRESTOptions(r, example)
	if size, isListed := q.sizes[r]; err == nil && !(isListed && size == 0) {
		o.Decorator = q.newStorage
	}
	return o, err
}

// newStorage makes the storage of a resource, with a watch cache. It does what the decorator of upstream's
// StorageWithCacher does, which has no argument for the clock, and bounds the events.
func (q quietCaches) newStorage(config *storagebackend.ConfigForResource, prefix string,
	key func(runtime.Object) (string, error), newObject, newList func() runtime.Object, attributes storage.AttrFunc,
	triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	raw, destroy, err := generic.NewRawStorage(config, newObject, newList, prefix)
	if err != nil {
		return raw, destroy, err
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: &countedStorage{Interface: raw}, Versioner: storage.APIObjectVersioner{},
		GroupResource:       config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: prefix, KeyFunc: key, NewFunc: newObject,
		NewListFunc: newList, GetAttrsFunc: attributes, IndexerFuncs: triggers, Indexers: indexers, Codec: config.Codec,
		Clock: q.clock,
	})
	if err != nil {
		return nil, func() {}, err
	}
	if err := boundHistory(cached, q.events); err != nil {
		cached.Stop()
		destroy()
		return nil, func() {}, err
	}
	all := cacher.NewCacheDelegator(cached, raw)
	return all, sync.OnceFunc(func() {
		all.Stop()
		cached.Stop()
		destroy()
	}), nil
}
