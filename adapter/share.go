package adapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"atoll.dev/bus"
)

// Sharer has replicas of one adapter share its resources, so that each resource
// is one replica's. CLM does it.
type Sharer interface {
	// Renew asks for a lease, and says which slots must not be another's yet: work is
	// under way there, or may begin before the answer comes. It returns how many
	// slots there are, and those in which work may begin until so long after Renew
	// was called. ErrNotShared: the server does not do this.
	Renew(ctx context.Context, lease time.Duration, keep []int) (slots int, open []OpenSlot, err error)
	// Leave says that no work is under way any more.
	Leave(ctx context.Context) error
}

// OpenSlot is a slot in which a replica may begin work.
type OpenSlot struct {
	Slot int
	// Since changes whenever another replica may have worked in the slot; 0 is not
	// known.
	Since int64
}

// ErrNotShared is what a Sharer returns of a server that knows no replicas.
var ErrNotShared = errors.New("the server does not share resources among replicas")

// errLeaseOver ends runs when the lease could not be renewed: another replica may
// work on their resources from now on.
var errLeaseOver = errors.New("the lease of this replica is over")

// share is a replica's part. Its zero value, without slots, has all: nobody
// shares. Its methods may be called by several goroutines.
type share struct {
	lease time.Duration

	mu    sync.Mutex
	slots int
	open  []bool
	since []int64   // OpenSlot.Since of the slots that are open, or were when the lease ended; else 0
	busy  []int     // runs under way
	until time.Time // the end of the lease
	ended func()    // ends the runs of the lease
	work  context.Context
}

// holding is what a replica has of a resource's slot.
type holding int

const (
	foreign   holding = iota // it is another replica's, or may be
	owned                    // work may begin
	suspended                // the lease is over, and maybe nobody else took the slot
)

// holds says what this replica has of a resource's slot.
func (s *share) holds(id string, now time.Time) holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == 0 {
		return owned
	}
	slot := bus.SlotOf(id, s.slots)
	switch {
	case s.open[slot] && now.Before(s.until):
		return owned
	case s.open[slot] || s.since[slot] != 0:
		return suspended
	}
	return foreign
}

// begin begins work on a resource, if that may be. Its context ends with the
// lease. end must be called.
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

// keep are the slots in which work is under way, and those in which it may begin
// before the answer to a renewal is here, or is not: an answer may be lost. So a
// slot is closed by one renewal and let go with another.
func (s *share) keep() (slots []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot, n := range s.busy {
		if n > 0 || s.open[slot] {
			slots = append(slots, slot)
		}
	}
	return slots
}

// renewed takes an answer to what was asked at a time. It returns the slots in
// which another replica may have worked since they were open here. Those that are
// open again after the lease was over, and were nobody else's, are not among them.
func (s *share) renewed(slots int, open []OpenSlot, asked time.Time) (gained []int) {
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
	// Work ends a little before others may begin: what is told to end takes time to.
	s.until = asked.Add(s.lease * 3 / 4)
	if s.work == nil || s.work.Err() != nil {
		s.work, s.ended = context.WithCancel(context.Background())
	}
	return gained
}

// lapse ends all work when the lease is over by now, and says whether it is.
func (s *share) lapse(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == 0 || now.Before(s.until) {
		return false
	}
	clear(s.open) // since stays: by it the next answer shows whose slots were meanwhile another's
	if s.ended != nil {
		s.ended()
	}
	return true
}

// held are the slots that are this replica's as far as it knows, of how many; 0 if
// nobody shares.
func (s *share) held() (slots []int, of int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.open {
		if s.open[slot] || s.since[slot] != 0 {
			slots = append(slots, slot)
		}
	}
	return slots, s.slots
}

// count is how many slots there are; 0 if nobody shares.
func (s *share) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots
}

// left is how long the lease lasts from now on.
func (s *share) left(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until.Sub(now)
}

// firstShare asks until the server answers. It is false when nobody shares.
func (w *Worker) firstShare(ctx context.Context) (bool, error) {
	for {
		err := w.renew(ctx)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, ErrNotShared):
			w.o.Log.Info("replicas share the events, and each looks after all objects", "reason", err)
			return false, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		}
		w.o.Log.Warn("the adapter's work is not shared yet", "error", err)
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(w.o.Lease / 4):
		}
	}
}

// keepShare renews the lease until ctx ends, and then gives it back.
func (w *Worker) keepShare(ctx context.Context) {
	tick := time.NewTicker(w.o.Lease / 4)
	defer tick.Stop()
	for {
		over := time.NewTimer(max(w.share.left(time.Now()), 0))
		select {
		case <-ctx.Done():
			over.Stop()
			return
		case <-over.C:
			if w.share.lapse(time.Now()) {
				w.o.Log.Warn("the lease could not be renewed in time; work has ended until it is")
			}
			select { // there is nothing to be over
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

// renew asks once. Slots that are new are looked after from the beginning.
func (w *Worker) renew(ctx context.Context) error {
	asked, limit := time.Now(), w.o.Lease/2
	if left := w.share.left(asked); left > 0 {
		limit = min(limit, left) // its end must not wait for an answer
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	slots, open, err := w.o.Sharer.Renew(ctx, w.o.Lease, w.share.keep())
	if err != nil {
		return fmt.Errorf("renewing the lease: %w", err)
	}
	w.share.lapse(asked)
	if gained := w.share.renewed(slots, open, asked); len(gained) > 0 {
		w.o.Log.Info("resources are this replica's", "slots", len(open), "of", slots, "gained", len(gained))
		w.gain(gained)
	}
	w.unpark()
	return nil
}

// leave gives the lease back, once no work is under way.
func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := w.o.Sharer.Leave(ctx); err != nil {
		w.o.Log.Warn("the lease was not given back; others take over when it is over", "error", err)
	}
}
