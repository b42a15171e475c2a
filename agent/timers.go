package agent

import (
	"container/heap"
	"time"

	"atoll.dev/api/work"
)

// wakeAt makes the core advance the work at t, unless t is past.
func (c *core) wakeAt(t time.Time, id work.ID) {
	if t.After(c.now) {
		heap.Push(&c.timers, timer{t, id})
	}
}

type timer struct {
	at time.Time
	id work.ID
}

// Ids of the timers that belong to no work. No work has such an id.
const (
	retryTimer   work.ID = "\x00retry"
	contestTimer work.ID = "\x00contest"
	resyncTimer  work.ID = "\x00resync"
)

type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

const (
	backoffFirst = time.Second
	backoffMax   = time.Minute
)

// backoff is the wait after the given number of failures.
func backoff(failures int) time.Duration {
	d := backoffFirst
	for i := 1; i < failures && d < backoffMax; i++ {
		d *= 2
	}
	return min(d, backoffMax)
}

// transportBackoff is the wait after a call that got no answer while the API
// server as a whole seems to answer.
func transportBackoff(failures int) time.Duration {
	return min(50*time.Millisecond<<min(failures, 10), 5*time.Second)
}

// backoffFor is the wait after the given number of failures, by their kind. A
// race lost once is tried again at once.
func backoffFor(e *opError, failures int) time.Duration {
	switch {
	case e.kind == errTransport:
		return transportBackoff(failures)
	case e.kind == errConflict && failures == 1:
		return 0
	case e.kind == errDenied:
		return deniedRetry
	}
	return backoff(failures)
}
