package clmclient

import (
	"container/list"
	"context"
	"net/http"
	"sync"

	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// Recent reads resources with their reports, and keeps those that it has read lately. Each read is a request to CLM,
// with the ETag of the kept resource: CLM answers 304 when the resource, its reports and their times are the same, and
// the kept one is returned. So a read shows what a read without Recent shows, but an unchanged resource is neither sent
// nor decoded again.
//
// The resources of a Recent are shared: a caller must not change them. Several goroutines may use a Recent.
type Recent struct {
	clm   *Client
	limit int // of the JSON of all kept resources, in bytes

	mu    sync.Mutex
	kept  map[recentKey]*list.Element // of order
	order *list.List                  // of *keptResource, the one that was read last first
	size  int                         // of the JSON of all kept resources, in bytes
}

// recentKey names a resource as one tenant reads it.
type recentKey struct {
	tenant cluster.Account // "": the caller has none
	from   Collection
	id     string
}

type keptResource struct {
	key      recentKey
	resource Resource
}

// NewRecent returns a Recent that keeps at most limit bytes of JSON. A resource takes a few times the memory of its
// JSON: the JSON, the decoded resource, and what Resource.Derived has.
func NewRecent(clm *Client, limit int) *Recent {
	return &Recent{clm: clm, limit: limit, kept: map[recentKey]*list.Element{}, order: list.New()}
}

// GetWithStatuses is Client.GetWithStatuses. A resource that CLM does not show any more is kept no longer; after any
// other error the resource stays, and the next read asks again.
func (c *Recent) GetWithStatuses(ctx context.Context, from Collection, id string) (Resource, error) {
	key := recentKey{tenantOf(ctx), from, id}
	have, isKept := c.find(key)
	request := requestWithStatuses(from, id)
	if isKept {
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
	if err != nil || r.ETag == "" || len(r.JSON) > c.limit/maxShare {
		c.remove(key)
		return r, err
	}
	r.Derived = &sync.Map{}
	c.keep(key, r)
	return r, nil
}

// maxShare is the part of the limit that one resource may take: an eighth. A larger one is not kept.
const maxShare = 8

// find returns a kept resource, and makes it the one that was read last.
func (c *Recent) find(key recentKey) (Resource, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.kept[key]
	if !ok {
		return Resource{}, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*keptResource).resource, true
}

// keep keeps a resource, and removes those that were not read for the longest time until all are within the limit.
func (c *Recent) keep(key recentKey, r Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(c.kept[key])
	c.kept[key] = c.order.PushFront(&keptResource{key, r})
	for c.size += len(r.JSON); c.size > c.limit; {
		c.removeLocked(c.order.Back())
	}
}

// remove removes a resource; it may be gone already.
func (c *Recent) remove(key recentKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(c.kept[key])
}

// removeLocked removes an element of order; nil is none. The caller holds mu.
func (c *Recent) removeLocked(e *list.Element) {
	if e == nil {
		return
	}
	k := c.order.Remove(e).(*keptResource)
	delete(c.kept, k.key)
	c.size -= len(k.resource.JSON)
}
