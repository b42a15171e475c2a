package adapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"atoll.dev/bus"
)

// Sharer assigns the resources of an adapter to its replicas, each resource to one replica at a
// time. The lifecycle manager implements it.
type Sharer interface {
	// Renew renews the lease of this replica. keep are slots that the server must not give to
	// another replica yet, because work is in progress there or may begin before the answer
	// arrives. Renew returns the number of all slots, and the slots in which this replica may begin
	// work until lease after the call. The error is ErrNotShared when the server does not share
	// resources.
	Renew(ctx context.Context, lease time.Duration, keep []int) (slots int, open []OpenSlot, err error)
	// Leave gives the lease back: no work is in progress any more.
	Leave(ctx context.Context) error
}

// OpenSlot is a slot in which a replica may begin work.
type OpenSlot struct {
	Slot int
	// Since changes whenever another replica may have worked in the slot; 0 means unknown.
	Since int64
}

// ErrNotShared is the error of a Sharer whose server does not share resources among replicas.
var ErrNotShared = errors.New("the server does not share resources among replicas")

// errLeaseOver is the cause by which runs end when the lease was not renewed in time: another
// replica may work on their resources from then on.
var errLeaseOver = errors.New("the lease of this replica has expired")

// share is the set of slots that this replica holds. The zero value holds all resources: nobody
// shares. Its methods may be called by several goroutines.
type share struct {
	lease time.Duration

	mu    sync.Mutex
	slots int
	open  []bool
	since []int64   // OpenSlot.Since of slots that are open, or were when the lease expired; else 0
	busy  []int     // runs in progress, by slot
	until time.Time // the end of the lease
	ended func()    // cancels the runs of the lease
	work  context.Context
}

// holding reports whether a replica holds a resource's slot.
type holding int

const (
	heldByOther holding = iota // another replica holds it, or may hold it
	heldHere                   // work may begin
	suspended                  // the lease has expired, and perhaps no other replica took the slot
)

// holds reports whether this replica holds a resource's slot.
func (s *share) holds(id string, now time.Time) holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == 0 {
		return heldHere
	}
	slot := bus.SlotOf(id, s.slots)
	switch {
	case s.open[slot] && now.Before(s.until):
		return heldHere
	case s.open[slot] || s.since[slot] != 0:
		return suspended
	}
	return heldByOther
}

// begin begins work on a resource when this replica holds its slot. The context ends with the
// lease. The caller calls end when the work has ended.
func (s *share) begin(ctx context.Context, id string, now time.Time) (_ context.Context, end func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == 0 {
		return ctx, func() {}, true
	}
	slot := bus.SlotOf(id, s.slots)
	if !s.open[slot] || !now.Before(s.until) {
		return ctx, func() {}, false
	}
	s.busy[slot]++
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.work, func() { cancel(errLeaseOver) })
	return ctx, func() {
		stop()
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy[slot]--
	}, true
}

// slotsToKeep returns the slots in which work is in progress or may begin before the answer to a renewal
// arrives; the answer may be lost. So one renewal closes a slot and the next one gives it up.
func (s *share) slotsToKeep() (slots []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot, n := range s.busy {
		if n > 0 || s.open[slot] {
			slots = append(slots, slot)
		}
	}
	return slots
}

// applyRenewal takes the answer to a renewal that was sent at asked. It returns the slots in which
// another replica may have worked since they were open here. Slots that open again after the lease
// expired, and that no other replica held meanwhile, are not among them.
func (s *share) applyRenewal(slots int, open []OpenSlot, asked time.Time) (gained []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots != slots { // the first answer
		s.slots, s.open, s.busy, s.since = slots, make([]bool, slots), make([]int, slots), make([]int64, slots)
	}
	was, since := s.open, s.since
	s.open, s.since = make([]bool, slots), make([]int64, slots)
	for _, o := range open {
		if o.Slot < 0 || o.Slot >= slots {
			continue
		}
		s.open[o.Slot], s.since[o.Slot] = true, o.Since
		if !was[o.Slot] && (o.Since == 0 || since[o.Slot] != o.Since) {
			gained = append(gained, o.Slot)
		}
	}
	// Work ends before other replicas may begin: a cancelled run needs time to return.
	s.until = asked.Add(s.lease * 3 / 4)
	if s.work == nil || s.work.Err() != nil {
		s.work, s.ended = context.WithCancel(context.Background())
	}
	return gained
}

// endIfExpired cancels all runs when the lease has expired, and reports whether it has.
func (s *share) endIfExpired(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == 0 || now.Before(s.until) {
		return false
	}
	clear(s.open) // since stays: the next answer shows by it which slots another replica held meanwhile
	if s.ended != nil {
		s.ended()
	}
	return true
}

// slotsOfReplica returns the slots that this replica holds as far as it knows, and how many slots
// there are; 0 when the resources are not shared.
func (s *share) slotsOfReplica() (slots []int, of int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.open {
		if s.open[slot] || s.since[slot] != 0 {
			slots = append(slots, slot)
		}
	}
	return slots, s.slots
}

// slotCount returns how many slots there are; 0 when the resources are not shared.
func (s *share) slotCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots
}

// remaining returns how long the lease lasts from now on.
func (s *share) remaining(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until.Sub(now)
}

// firstShare renews until the server answers. It returns false when the resources are not shared.
func (w *Worker) firstShare(ctx context.Context) (bool, error) {
	for {
		err := w.renew(ctx)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, ErrNotShared):
			w.o.Log.Info("the broker distributes the events among the replicas, and each watches all objects", "reason",
				err)
			return false, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		}
		w.o.Log.Warn("the lifecycle manager did not assign resources to this replica; it asks again", "error", err)
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(w.o.Lease / 4):
		}
	}
}

// keepShare renews the lease every quarter of it until ctx ends.
func (w *Worker) keepShare(ctx context.Context) {
	tick := time.NewTicker(w.o.Lease / 4)
	defer tick.Stop()
	for {
		over := time.NewTimer(max(w.share.remaining(time.Now()), 0))
		select {
		case <-ctx.Done():
			over.Stop()
			return
		case <-over.C:
			if w.share.endIfExpired(time.Now()) {
				w.o.Log.Warn("the lease was not renewed in time; no task runs until it is")
			}
			select { // an expired lease needs no timer
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		case <-tick.C:
			over.Stop()
		}
		if err := w.renew(ctx); err != nil && ctx.Err() == nil {
			w.o.Log.Debug("the lease was not renewed", "error", err)
		}
	}
}

// renew renews the lease once and queues newly acquired slots for resyncSlots.
func (w *Worker) renew(ctx context.Context) error {
	asked, limit := time.Now(), w.o.Lease/2
	if left := w.share.remaining(asked); left > 0 {
		limit = min(limit, left) // keepShare must handle the end of the lease in time
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	slots, open, err := w.o.Sharer.Renew(ctx, w.o.Lease, w.share.slotsToKeep())
	if err != nil {
		return fmt.Errorf("renewing the lease: %w", err)
	}
	w.share.endIfExpired(asked)
	if gained := w.share.applyRenewal(slots, open, asked); len(gained) > 0 {
		w.o.Log.Info("this replica holds slots", "slots", len(open), "of", slots, "gained", len(gained))
		w.queueResync(gained)
	}
	w.requeueDeferred()
	return nil
}

// leave gives the lease back when no work is in progress.
func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := w.o.Sharer.Leave(ctx); err != nil {
		w.o.Log.Warn("the lease was not given back; other replicas take over when it expires", "error", err)
	}
}
