package agent

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/work"
)

// TestI9AnOrderBeforeTheDeletionIsRefused: a create or an update that
// arrives after the deletion that followed it does not bring the work back.
func TestI9AnOrderBeforeTheDeletionIsRefused(t *testing.T) {
	c := newCore(coreConfig{consumer: "c1", hubHash: "hub", sendWindow: 10})
	now := time.Unix(1000, 0)
	acked := 0
	receive := func(s spec) (taken bool) {
		t.Helper()
		before := acked
		for _, e := range c.step(evSpec{spec: &s, ack: func() { acked++ }}, now) {
			if p, ok := e.(effPersist); ok && p.ack != nil {
				taken = taken || p.rec.Spec != nil
				p.ack()
			}
		}
		if acked != before+1 {
			t.Errorf("generation %d is acknowledged %d times", s.Generation, acked-before)
		}
		return taken
	}
	c.deleted.add(&spec{ID: "w", Generation: 3, Deleting: true, Life: "one"}, now)
	for _, in := range []struct {
		what  string
		spec  spec
		taken bool
	}{
		{"the create", spec{ID: "w", Generation: 1, Life: "one"}, false},
		{"the last update", spec{ID: "w", Generation: 3, Life: "one"}, false},
		{"what was ordered again since", spec{ID: "w", Generation: 4, Life: "one"}, true},
	} {
		if got := receive(in.spec); got != in.taken {
			t.Errorf("%s is taken: %v", in.what, got)
		}
	}
	for i, in := range []struct {
		what    string
		deleted spec
		spec    spec
		later   time.Duration
	}{
		{"an order of a database that was lost and made anew", spec{Generation: 3, Life: "one"},
			spec{Generation: 1, Life: "two"}, 0},
		{"an order of a server that names no life", spec{Generation: 3}, spec{Generation: 1}, 0},
		{"an order that comes much later", spec{Generation: 3, Life: "one"}, spec{Generation: 1, Life: "one"},
			deletedMemory + time.Second},
	} {
		in.deleted.ID = work.ID(fmt.Sprint("x", i))
		in.spec.ID = in.deleted.ID
		c.deleted.add(&in.deleted, now)
		now = now.Add(in.later)
		if !receive(in.spec) {
			t.Errorf("%s is refused", in.what)
		}
	}
}

// The memory of deletions is bounded, and the latest deletion of an id counts.
func TestDeletedWorksAreBounded(t *testing.T) {
	d := newDeletedWorks()
	now := time.Unix(1000, 0)
	for i := range 3 * maxDeleted {
		d.add(&spec{ID: work.ID(fmt.Sprint(i)), Generation: 1, Life: "one"}, now)
	}
	if len(d.byID) > maxDeleted || len(d.order) > maxDeleted {
		t.Errorf("%d works are remembered", len(d.byID))
	}
	d.add(&spec{ID: "again", Generation: 1, Life: "one"}, now)
	now = now.Add(deletedMemory - time.Second)
	d.add(&spec{ID: "again", Generation: 2, Life: "one"}, now)
	now = now.Add(deletedMemory - time.Second)
	if !d.isStale(&spec{ID: "again", Generation: 2, Life: "one"}, now) {
		t.Error("the second deletion is forgotten with the first")
	}
	now = now.Add(time.Minute)
	d.expire(now)
	if len(d.byID)+len(d.order) > 0 {
		t.Errorf("%d works are never forgotten", len(d.byID))
	}
}
