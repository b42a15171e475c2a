package delivery

import (
	"container/heap"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/internal/indexheap"
)

// item is one work of a lane. It is in exactly one place: in flight, in a
// queue (urgent or fresh), or waiting for its next repetition.
type item struct {
	work     Work
	attempts int       // attempts since the work's last change
	ahead    bool      // was sent and not acknowledged: counts in the window
	inflight bool      // Next has returned it, and EndSend has not been called yet
	token    uint64    // of the Send in flight
	resend   bool      // in flight; it is sent once more after that
	finished bool      // in flight and finished (acknowledged or forgotten); later Sends of its work wait for its EndSend
	queued   bool      // in urgent or fresh
	due      time.Time // time of the next repetition, while waiting
	index    int       // in waiting, or -1
}

// lane has the unacknowledged works of one consumer: its deletions, or all other works.
type lane struct {
	laneKey
	items map[work.ID]*item
	ahead int // items that count in the window

	finished int // items that are finished and still in flight

	urgent  []*item // items that were sent before and count in the window already
	fresh   []*item // items to send for the first time, in order, as the window allows
	waiting itemHeap

	contacted bool      // an event of the agent arrived since the last repetition
	silent    int       // repetitions since the agent's last event
	repeated  time.Time // the last repetition
	next      time.Time // no repetition before this time
	left      int       // repetitions of the present batch that the pace of deletions has held back

	listed bool      // the lane is in Machine.ready
	at     time.Time // the lane's time in Machine.timers
	index  int       // the lane's index in Machine.timers, or -1
}

// queue appends an item to its queue, unless it is queued. An item in flight is sent once
// more afterwards.
func (l *lane) queue(it *item) {
	if it.inflight {
		it.resend = true
		return
	}
	if it.queued {
		return
	}
	if it.index >= 0 {
		heap.Remove(&l.waiting, it.index)
	}
	it.queued = true
	if it.ahead {
		l.urgent = append(l.urgent, it)
	} else {
		l.fresh = append(l.fresh, it)
	}
}

// wait makes an item wait until due.
func (l *lane) wait(it *item, due time.Time) {
	it.queued = false // take skips it
	it.due = due
	if it.index >= 0 {
		heap.Fix(&l.waiting, it.index)
	} else {
		heap.Push(&l.waiting, it)
	}
}

// drop removes an item. An item in flight stays in the lane, finished, until EndSend
// is called for it.
func (l *lane) drop(it *item) {
	if it.index >= 0 {
		heap.Remove(&l.waiting, it.index)
	}
	if it.ahead {
		it.ahead = false
		l.ahead--
	}
	it.queued, it.resend = false, false // take skips it where it is queued
	if it.inflight {
		it.finished = true
		l.finished++
		return
	}
	delete(l.items, it.work.ID)
}

// reactivate gives a finished item in flight the work w, which must be sent after the one in flight.
func (l *lane) reactivate(it *item, w Work) {
	it.finished = false
	l.finished--
	it.work, it.attempts = w, 0
}

// remove removes a finished item.
func (l *lane) remove(it *item) {
	l.finished--
	delete(l.items, it.work.ID)
}

// take removes the next item to send from its queue and returns it, or returns nil.
func (l *lane) take(window int) *item {
	for len(l.urgent) > 0 {
		it := l.urgent[0]
		l.urgent = l.urgent[1:]
		if it.queued {
			it.queued = false
			return it
		}
	}
	for len(l.fresh) > 0 && l.ahead < window {
		it := l.fresh[0]
		l.fresh = l.fresh[1:]
		if it.queued {
			it.queued = false
			if !it.ahead {
				it.ahead = true
				l.ahead++
			}
			return it
		}
	}
	return nil
}

// sendable reports whether take would return an item.
func (l *lane) sendable(window int) bool {
	for len(l.urgent) > 0 && !l.urgent[0].queued {
		l.urgent = l.urgent[1:]
	}
	for len(l.fresh) > 0 && !l.fresh[0].queued {
		l.fresh = l.fresh[1:]
	}
	return len(l.urgent) > 0 || len(l.fresh) > 0 && l.ahead < window
}

// due returns the time of the lane's next repetition; false when no item waits.
func (l *lane) due() (time.Time, bool) {
	if len(l.waiting) == 0 {
		return time.Time{}, false
	}
	due := l.waiting[0].due
	if due.Before(l.next) {
		due = l.next
	}
	return due, true
}

// repeat queues the due items, at the lane's pace and at most limit of them. It returns
// their number. When limit ends a batch early, the lane stays due and a later call
// continues the batch: only a complete batch begins the lane's pause.
func (l *lane) repeat(now time.Time, cfg *Config, limit int) (queued int) {
	if l.left == 0 {
		l.begin(now, cfg)
	}
	for limit = min(limit, l.left); queued < limit && l.hasDue(now); queued++ {
		l.queue(l.waiting[0])
	}
	if l.left -= queued; l.left == 0 || !l.hasDue(now) {
		l.left = 0
		l.next = now.Add(backoff(cfg.Base, cfg.maxPause(l.class), l.silent))
	}
	return queued
}

// begin begins a batch of repetitions.
func (l *lane) begin(now time.Time, cfg *Config) {
	if l.contacted {
		l.silent = 0
	}
	l.left = cfg.Retries
	if l.silent > 0 {
		l.left = cfg.Probes
	}
	l.contacted = false
	l.silent++
	l.repeated = now
}

// hasDue reports whether an item waits whose time has come.
func (l *lane) hasDue(now time.Time) bool { return len(l.waiting) > 0 && !l.waiting[0].due.After(now) }

// itemHeap orders waiting items by time.
type itemHeap = indexheap.Heap[*item]

// IsBefore implements indexheap.Item.
func (it *item) IsBefore(other *item) bool { return it.due.Before(other.due) }

// SetHeapIndex implements indexheap.Item.
func (it *item) SetHeapIndex(i int) { it.index = i }

// sortItems returns waiting items in a stable order.
func sortItems(h itemHeap) []*item {
	s := slices.Clone([]*item(h))
	slices.SortFunc(s, func(a, b *item) int {
		if c := a.due.Compare(b.due); c != 0 {
			return c
		}
		return strings.Compare(string(a.work.ID), string(b.work.ID))
	})
	return s
}

// laneHeap orders lanes by the time of their next repetition.
type laneHeap = indexheap.Heap[*lane]

// IsBefore implements indexheap.Item.
func (l *lane) IsBefore(other *lane) bool { return l.at.Before(other.at) }

// SetHeapIndex implements indexheap.Item.
func (l *lane) SetHeapIndex(i int) { l.index = i }
