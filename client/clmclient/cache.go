package clmclient

import (
	"container/list"
	"context"
	"net/http"
	"sync"

	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// ResourceCache caches resources with their reports. Each read sends CLM a conditional GET with the ETag of the cached
// resource. CLM answers 304 if its answer would have the same bytes; then the cache returns the cached resource. So a
// read is never stale. The cache saves the transfer and the decoding of an unchanged resource, not the request.
//
// Callers share the cached resources and must not change them. Several goroutines may use a ResourceCache.
type ResourceCache struct {
	clm     *Client
	maxSize int // the largest allowed size, in bytes

	mu      sync.Mutex
	entries map[cacheKey]*list.Element // the elements of order
	order   *list.List                 // of *cacheEntry; the entry that was read last is the first
	size    int                        // the sum of len(resource.JSON) of all entries, in bytes
}

// cacheKey identifies a resource for one tenant. Two tenants never share an entry.
type cacheKey struct {
	tenant     cluster.Account // "" is the system, which reads the resources of all tenants
	collection Collection
	id         string
}

type cacheEntry struct {
	key      cacheKey
	resource Resource
}

// NewResourceCache returns an empty cache. maxSize, in bytes, counts only JSON. An entry uses a few times that memory:
// the JSON, the decoded resource and the values of Resource.Derived.
func NewResourceCache(clm *Client, maxSize int) *ResourceCache {
	return &ResourceCache{clm: clm, maxSize: maxSize, entries: map[cacheKey]*list.Element{}, order: list.New()}
}

// GetWithStatuses returns the same result as Client.GetWithStatuses. A 404 removes the entry. Any other error of the
// request leaves the entry. An answer that has no ETag, is larger than an eighth of maxSize, or cannot be decoded
// removes the entry, too.
func (c *ResourceCache) GetWithStatuses(ctx context.Context, from Collection, id string) (Resource, error) {
	key := cacheKey{tenantOf(ctx), from, id}
	have, isCached := c.lookup(key)
	request := requestWithStatuses(from, id)
	if isCached {
		request.Header = http.Header{"If-None-Match": {have.ETag}}
	}
	doc, _, err := c.clm.http.Do(ctx, request)
	switch {
	case remote.StatusOf(err) == http.StatusNotFound:
		c.remove(key)
		return Resource{}, err
	case err != nil:
		return Resource{}, err
	case doc.NotModified:
		return have, nil
	}
	r, err := resourceOf(doc)
	if err != nil || r.ETag == "" || len(r.JSON) > c.maxEntrySize() {
		c.remove(key)
		return r, err
	}
	r.Derived = &sync.Map{}
	c.insert(key, r)
	return r, nil
}

// maxEntrySize returns the largest size of an entry, in bytes: one resource must not remove all others.
func (c *ResourceCache) maxEntrySize() int { return c.maxSize / 8 }

// lookup returns a cached resource, and moves its entry to the front of order.
func (c *ResourceCache) lookup(key cacheKey) (Resource, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return Resource{}, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cacheEntry).resource, true
}

// insert caches a resource. Then it removes the entries that were not read for the longest time, while size exceeds
// maxSize.
func (c *ResourceCache) insert(key cacheKey, r Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(c.entries[key])
	c.entries[key] = c.order.PushFront(&cacheEntry{key, r})
	c.size += len(r.JSON)
	for c.size > c.maxSize {
		c.removeLocked(c.order.Back())
	}
}

// remove removes the entry of a key, if there is one.
func (c *ResourceCache) remove(key cacheKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(c.entries[key])
}

// removeLocked removes an element of order. It does nothing if e is nil. The caller holds mu.
func (c *ResourceCache) removeLocked(e *list.Element) {
	if e == nil {
		return
	}
	removed := c.order.Remove(e).(*cacheEntry)
	delete(c.entries, removed.key)
	c.size -= len(removed.resource.JSON)
}
