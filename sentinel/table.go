package sentinel

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"strings"

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
	owner   key // zero: none
	slot    uint8
	reading bool   // its document is being read
	place   int    // in its queue; -1: in none
	number  uint64 // of its last event
	queue   *queue

	held *store.Document // from the feed, for a decision that is due at once
}

// queue is a heap of resources, ordered by the time at which they are due.
type queue []*resource

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].Due < q[j].Due }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	r := x.(*resource)
	r.place = len(*q)
	*q = append(*q, r)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	r := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	r.place = -1
	return r
}

// table has the resources of this replica's slots. Only the sentinel's loop uses it.
type table struct {
	all             map[key]*resource
	owned           map[key]map[*resource]bool // by owner, which may be in others' slots
	urgent, routine queue                      // urgent: user-visible changes; routine: timer retries
	owing           map[*resource]bool         // resources with an unsent event; each holds back its slot's cursor
	counts          map[store.Kind]*count
	inSlot          [slots]int
	heldBytes       int
}

// count has the numbers of a kind's resources for the metrics.
type count struct{ resources, pending int }

func newTable() *table {
	return &table{all: map[key]*resource{}, owned: map[key]map[*resource]bool{}, owing: map[*resource]bool{},
		counts: map[store.Kind]*count{}}
}

func (t *table) count(kind store.Kind) *count {
	c := t.counts[kind]
	if c == nil {
		c = &count{}
		t.counts[kind] = c
	}
	return c
}

// get returns the resource of a key. It adds the resource if the table does not have it.
func (t *table) get(k key, slot int) *resource {
	r := t.all[k]
	if r == nil {
		k.id = strings.Clone(k.id) // not a part of a document
		r = &resource{key: k, slot: uint8(slot), place: -1, State: State{Salt: saltOf(k.id)}}
		t.all[k] = r
		t.count(k.kind).resources++
		t.inSlot[slot]++
	}
	return r
}

// own records the owner of a resource. A resource keeps its owner for its whole life.
func (t *table) own(r *resource, owner key) {
	if owner == (key{}) || r.owner == owner {
		return
	}
	owner.id = strings.Clone(owner.id)
	r.owner = owner
	if t.owned[owner] == nil {
		t.owned[owner] = map[*resource]bool{}
	}
	t.owned[owner][r] = true
}

// put sets the next state of a resource, and moves the resource to the queue of that state.
func (t *table) put(r *resource, s State) {
	c := t.count(r.kind)
	if pending(r.State) {
		c.pending--
	}
	r.State = s
	if pending(s) {
		c.pending++
	}
	if s.unsentSince() != 0 {
		t.owing[r] = true
	} else {
		delete(t.owing, r)
	}
	t.enqueue(r)
}

func pending(s State) bool { return s.Wanted || s.Forced || s.Unsent != 0 }

// enqueue moves a resource to the queue of its state. A resource whose document is being read, or whose event is in
// flight, is in no queue.
func (t *table) enqueue(r *resource) {
	want := &t.routine
	if r.Urgent {
		want = &t.urgent
	}
	if r.Due == 0 || r.reading || r.Sending {
		want = nil
	}
	switch {
	case want == nil && r.queue == nil:
	case want == r.queue:
		heap.Fix(r.queue, r.place)
	default:
		if r.queue != nil {
			heap.Remove(r.queue, r.place)
		}
		if r.queue = want; want != nil {
			heap.Push(want, r)
		}
	}
}

// maxHeld bounds the bytes of held documents. Decisions read documents beyond it from the database.
const maxHeld = 16 << 20

func sizeOf(d *store.Document) int { return len(d.Wire) + len(d.Spec) + len(d.Status) + 512 }

// hold keeps a resource's newest document in memory for the decision that is due soon.
func (t *table) hold(r *resource, d *store.Document) {
	t.release(r)
	if size := sizeOf(d); t.heldBytes+size <= maxHeld {
		r.held = d
		t.heldBytes += size
	}
}

func (t *table) release(r *resource) {
	if r.held != nil {
		t.heldBytes -= sizeOf(r.held)
		r.held = nil
	}
}

// drop removes a resource from the table.
func (t *table) drop(r *resource) {
	t.release(r)
	r.reading = false
	t.put(r, State{})
	c := t.count(r.kind)
	c.resources--
	t.inSlot[r.slot]--
	delete(t.all, r.key)
	if below := t.owned[r.owner]; below != nil {
		if delete(below, r); len(below) == 0 {
			delete(t.owned, r.owner)
		}
	}
}
