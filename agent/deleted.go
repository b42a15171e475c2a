package agent

import "time"

const (
	// deletedMemory is for how long the agent refuses what was ordered before a
	// deletion that it has finished. It is longer than a message can be under way
	// between a server and its agent: a server gives a message up after seconds, a
	// broker keeps none for an agent that is not connected.
	deletedMemory = 10 * time.Minute
	// maxDeleted bounds the memory, at about 200 bytes each.
	maxDeleted = 10_000
)

// deletedWorks remembers works that were deleted a short time ago. A create or
// an update that was sent before a deletion may arrive after it, from a broker
// that changes the order or from a server that was replaced while it published;
// without this memory it would bring the work back to life.
//
// The memory holds for orders in one life of one server's database. There the
// generations of an id go on after its deletion, so an order at the deleted
// generation, or below, is older than the deletion. Servers that name no life
// begin again at generation 1, and are not refused anything.
type deletedWorks struct {
	byID  map[workID]deletedWork
	order []deletedID // by time
}

type deletedWork struct {
	generation int64
	life       string
	at         time.Time
}

type deletedID struct {
	id workID
	at time.Time
}

func newDeletedWorks() deletedWorks { return deletedWorks{byID: map[workID]deletedWork{}} }

// add remembers a deletion that is finished.
func (d *deletedWorks) add(s *spec, now time.Time) {
	d.expire(now)
	if s.Life == "" {
		return
	}
	d.byID[s.ID] = deletedWork{s.Generation, s.Life, now}
	d.order = append(d.order, deletedID{s.ID, now})
}

// isStale says that an order is older than the deletion of its work.
func (d *deletedWorks) isStale(in *spec, now time.Time) bool {
	d.expire(now)
	was, known := d.byID[in.ID]
	return known && !in.Deleting && in.Life == was.life && in.Generation <= was.generation
}

// expire forgets what is too old, and the oldest where there are too many.
func (d *deletedWorks) expire(now time.Time) {
	for len(d.order) > 0 && (len(d.order) >= maxDeleted || now.Sub(d.order[0].at) > deletedMemory) {
		if first := d.order[0]; d.byID[first.id].at.Equal(first.at) {
			delete(d.byID, first.id)
		}
		d.order = d.order[1:]
	}
}
