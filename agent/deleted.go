package agent

import (
	"time"

	"atoll.dev/api/work"
)

const (
	// deletedMemory is how long the agent refuses specs that the server ordered
	// before a finished deletion. It is longer than a message can be in flight: a
	// server gives up a message after seconds, and a broker keeps none for a
	// disconnected agent.
	deletedMemory = 10 * time.Minute
	// maxDeleted bounds the number of remembered works, at about 200 bytes each.
	maxDeleted = 10_000
)

// deletedWorks remembers works that were deleted a short time ago. A create or
// an update that was sent before a deletion may arrive after it: from a broker
// that changes the order, or from a server that was replaced while it published.
// It would create the work again.
//
// Generations are compared only within one life of one server's database. There
// the generations of an id continue after its deletion, so a spec at the deleted
// generation, or below, is older than the deletion. Servers that name no life
// begin again at generation 1; the agent refuses none of their specs.
type deletedWorks struct {
	byID  map[work.ID]deletedWork
	order []deletedID // by time
}

type deletedWork struct {
	generation int64
	life       string
	at         time.Time
}

type deletedID struct {
	id work.ID
	at time.Time
}

func newDeletedWorks() deletedWorks { return deletedWorks{byID: map[work.ID]deletedWork{}} }

// add remembers a finished deletion.
func (d *deletedWorks) add(s *spec, now time.Time) {
	d.expire(now)
	if s.Life == "" {
		return
	}
	d.byID[s.ID] = deletedWork{s.Generation, s.Life, now}
	d.order = append(d.order, deletedID{s.ID, now})
}

// isStale reports whether a spec is older than the deletion of its work.
func (d *deletedWorks) isStale(in *spec, now time.Time) bool {
	d.expire(now)
	was, known := d.byID[in.ID]
	return known && !in.Deleting && in.Life == was.life && in.Generation <= was.generation
}

// expire forgets works older than deletedMemory, and the oldest above maxDeleted.
func (d *deletedWorks) expire(now time.Time) {
	for len(d.order) > 0 && (len(d.order) >= maxDeleted || now.Sub(d.order[0].at) > deletedMemory) {
		if first := d.order[0]; d.byID[first.id].at.Equal(first.at) {
			delete(d.byID, first.id)
		}
		d.order = d.order[1:]
	}
}
