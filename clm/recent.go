package clm

import (
	"container/list"
	"sync"

	"atoll.dev/store"
)

// recentResources remembers the resources that this server has written last. A report on such a
// resource needs no read: the adapters of a resource report one soon after the other.
//
// A remembered state may be stale, because another server or a transaction of this one may have
// written the resource since. So a remembered state serves only to compose a write, which
// PostgreSQL makes if the resource still has the state's version and token. No answer without a
// write may depend on it. Several goroutines may use recentResources at once. The zero value is
// ready for use.
type recentResources struct {
	mu    sync.Mutex
	byKey map[resourceKey]*list.Element
	order list.List // of store.Document, the last used one first
	bytes int       // of all remembered resources, as sizeOf estimates it
	// credit is at most maxCredit. A current state adds 1, a stale one subtracts staleCost. Below 0 it
	// counts the reports that read their resource first.
	credit int
}

type resourceKey struct {
	kind store.Kind
	id   string
}

// maxRecentBytes bounds the memory of recentResources, as sizeOf estimates it.
const maxRecentBytes = 32 << 20

// A write from a stale state costs more than a read saves. So when more than a third of the
// remembered states are stale, as with several servers that share the adapters, readsAfterStale
// reports read their resource before the next one uses a remembered state.
const (
	maxCredit       = 64
	staleCost       = 2
	readsAfterStale = 64
)

// sizeOf estimates the memory of a resource with its decoded form, in bytes.
func sizeOf(d store.Document) int { return 1024 + 3*(len(d.Spec)+len(d.Status)+len(d.Wire)) }

// get returns the remembered state of a resource. ok is false if the caller must read the resource.
func (r *recentResources) get(kind store.Kind, id string) (d store.Document, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byKey[resourceKey{kind, id}]
	if e == nil {
		return d, false
	}
	if r.credit < 0 {
		r.credit++
		return d, false
	}
	r.order.MoveToFront(e)
	return e.Value.(store.Document), true
}

// put remembers a resource as this server has stored it. A resource that is being deleted, and a very
// large one, is forgotten instead.
func (r *recentResources) put(d store.Document) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := resourceKey{d.Kind, d.ID}
	r.remove(key)
	if d.DeletedAt != nil || sizeOf(d) > maxRecentBytes/16 {
		return
	}
	if r.byKey == nil {
		r.byKey = map[resourceKey]*list.Element{}
	}
	r.byKey[key] = r.order.PushFront(d)
	r.bytes += sizeOf(d)
	for r.bytes > maxRecentBytes {
		last := r.order.Back().Value.(store.Document)
		r.remove(resourceKey{last.Kind, last.ID})
	}
}

// forget removes a resource.
func (r *recentResources) forget(kind store.Kind, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(resourceKey{kind, id})
}

// forgetTree removes the resources of a tree; nil is a tree without resources.
func (r *recentResources) forgetTree(t *tree) {
	if t == nil {
		return
	}
	r.forget(t.doc.Kind, t.doc.ID)
	for _, child := range t.children {
		r.forgetTree(child)
	}
}

// remove is forget for a caller that holds the lock.
func (r *recentResources) remove(key resourceKey) {
	if e := r.byKey[key]; e != nil {
		r.bytes -= sizeOf(e.Value.(store.Document))
		r.order.Remove(e)
		delete(r.byKey, key)
	}
}

// recordCurrent records that a remembered state was the stored one.
func (r *recentResources) recordCurrent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.credit = min(r.credit+1, maxCredit)
}

// recordStale records that a remembered state was no longer the stored one.
func (r *recentResources) recordStale() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.credit -= staleCost; r.credit < 0 {
		r.credit = -readsAfterStale
	}
}
