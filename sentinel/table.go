package sentinel

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"atoll.dev/internal/indexheap"
	"atoll.dev/store"
)

// slots is the number of parts into which the replicas divide the resources.
const slots = 64

// slotOf returns the slot of a resource: a short hash of its id.
func slotOf(id string) int {
	sum := sha256.Sum256([]byte(id))
	return int(sum[0]) % slots
}

// slotSQL is slotOf in SQL.
const slotSQL = `get_byte(sha256(convert_to(d.id, 'UTF8')), 0) % 64`

// saltOf returns another hash of an id, which spreads the retries of resources.
func saltOf(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[8:])
}

// key names a resource.
type key struct {
	kind store.Kind
	id   string
}

// resource is one resource of this replica's slots.
type resource struct {
	State
	key
	owner     key // zero: none
	slot      uint8
	isReading bool   // readDue reads its document
	heapIndex int    // in queue; -1: in none
	lastEvent uint64 // the number of its last event
	queue     *queue

	document *store.Document // the newest one, if a decision on it is due soon; else nil
}

// queue is a heap of resources, ordered by the time at which they are due.
type queue = indexheap.Heap[*resource]

// IsBefore implements indexheap.Item.
func (r *resource) IsBefore(other *resource) bool { return r.Due < other.Due }

// SetHeapIndex implements indexheap.Item.
func (r *resource) SetHeapIndex(i int) { r.heapIndex = i }

// table has the resources of this replica's slots. Only the sentinel's loop uses it.
type table struct {
	all             map[key]*resource
	children        map[key]map[*resource]bool // by owner; the owner may be in a slot of another replica
	urgent, routine queue                      // urgent: user-visible changes; routine: timer retries
	unsent          map[*resource]bool         // resources with an unsent event; the cursor of a slot stays before these
	counts          map[store.Kind]*count
	sizeOfSlot      [slots]int
	documentBytes   int
}

// count has the numbers of a kind's resources for the metrics.
type count struct{ resources, pending int }

func newTable() *table {
	return &table{all: map[key]*resource{}, children: map[key]map[*resource]bool{}, unsent: map[*resource]bool{},
		counts: map[store.Kind]*count{}}
}

// count returns the counters of a kind.
func (t *table) count(kind store.Kind) *count {
	c := t.counts[kind]
	if c == nil {
		c = &count{}
		t.counts[kind] = c
	}
	return c
}

// getOrAdd returns the resource of a key, and adds a new one to the table if there is none.
func (t *table) getOrAdd(k key, slot int) *resource {
	r := t.all[k]
	if r == nil {
		k.id = strings.Clone(k.id) // a part of the document's text would keep all of it in memory
		r = &resource{key: k, slot: uint8(slot), heapIndex: -1, State: State{Salt: saltOf(k.id)}}
		t.all[k] = r
		t.count(k.kind).resources++
		t.sizeOfSlot[slot]++
	}
	return r
}

// setOwner records the owner of a resource. The owner of a resource never changes.
func (t *table) setOwner(r *resource, owner key) {
	if owner == (key{}) || r.owner == owner {
		return
	}
	owner.id = strings.Clone(owner.id)
	r.owner = owner
	if t.children[owner] == nil {
		t.children[owner] = map[*resource]bool{}
	}
	t.children[owner][r] = true
}

// setState sets the next state of a resource, and moves the resource to the queue of that state.
func (t *table) setState(r *resource, s State) {
	c := t.count(r.kind)
	if isPending(r.State) {
		c.pending--
	}
	r.State = s
	if isPending(s) {
		c.pending++
	}
	if s.unsentSince() != 0 {
		t.unsent[r] = true
	} else {
		delete(t.unsent, r)
	}
	t.enqueue(r)
}

// isPending reports whether the sentinel has to send an event, or to repeat it.
func isPending(s State) bool { return s.Wanted || s.Requested || s.Unsent != 0 }

// enqueue moves a resource to the queue of its state. A resource whose document is being read, or whose event is in
// flight, is in no queue.
func (t *table) enqueue(r *resource) {
	want := &t.routine
	if r.Urgent {
		want = &t.urgent
	}
	if r.Due == 0 || r.isReading || r.Sending {
		want = nil
	}
	switch {
	case want == nil && r.queue == nil:
	case want == r.queue:
		heap.Fix(r.queue, r.heapIndex)
	default:
		if r.queue != nil {
			heap.Remove(r.queue, r.heapIndex)
		}
		if r.queue = want; want != nil {
			heap.Push(want, r)
		}
	}
}

// maxDocumentBytes bounds the documents that the table keeps. Decisions read further ones from the database.
const maxDocumentBytes = 16 << 20

// sizeOf returns the approximate size of a document in memory.
func sizeOf(d *store.Document) int { return len(d.Wire) + len(d.Spec) + len(d.Status) + 512 }

// keepDocument keeps a resource's newest document in memory for the decision that is due soon.
func (t *table) keepDocument(r *resource, d *store.Document) {
	t.releaseDocument(r)
	if size := sizeOf(d); t.documentBytes+size <= maxDocumentBytes {
		r.document = d
		t.documentBytes += size
	}
}

// releaseDocument drops the kept document of a resource, if there is one.
func (t *table) releaseDocument(r *resource) {
	if r.document != nil {
		t.documentBytes -= sizeOf(r.document)
		r.document = nil
	}
}

// remove removes a resource from the table.
func (t *table) remove(r *resource) {
	t.releaseDocument(r)
	r.isReading = false
	t.setState(r, State{})
	c := t.count(r.kind)
	c.resources--
	t.sizeOfSlot[r.slot]--
	delete(t.all, r.key)
	if below := t.children[r.owner]; below != nil {
		if delete(below, r); len(below) == 0 {
			delete(t.children, r.owner)
		}
	}
}
