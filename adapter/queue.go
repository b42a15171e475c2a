package adapter

import (
	"cmp"
	"container/heap"
	"time"
)

// queue orders the runs of resources: at most one run for each resource, however many events come. It
// has no clock and no goroutine; its owner passes the time.
//
// An event is a hint. While its resource waits it only replaces the waiting event by the newest
// generation; while its resource runs it queues another run. The queue retries a failed run five times
// with back-off; after that the sentinel sends the event again.
//
// Fresh work goes first: generations that did not run yet, and changes that watches report. The
// sentinel repeats the events of unreconciled resources; under load these would delay fresh work, and
// the longer that takes the more events it repeats. So every fourth turn is for repetitions.
type queue struct {
	items map[string]*item // by the resource's ID
	due   [2]dueHeap       // fresh work; repetitions
	ran   map[string]run   // by ID: the last generation whose run succeeded
	turn  int
	seq   int64
	swept time.Time

	jitter func(time.Duration) time.Duration // of a back-off
}

// run is a generation whose run succeeded, when, and its trace.
type run struct {
	generation int64
	at         time.Time
	trace      string
}

// class says to which heap of the queue an item belongs.
type class int

const (
	fresh class = iota
	repeated

	repeatedTurn = 4 // every fourth turn is for repetitions
	rememberFor  = time.Hour
)

// item is one resource.
type item struct {
	task     task
	at       time.Time // when it is due, while it waits
	seq      int64     // orders items that are due at the same time
	class    class     // its heap while it waits, or after the run in progress
	index    int       // in the heap; -1 when it does not wait
	running  bool
	began    task // the run in progress
	again    bool // run again, at the earliest at at, when the run in progress ends
	failures int  // in a row
	changes  int  // reported by watches recently
	changed  time.Time
}

// task is one run.
type task struct {
	Event
	trace string    // W3C traceparent of its cause; may be empty
	since time.Time // when it was queued first
}

const (
	// retries of a run that failed, after firstRetry, twice that, and so on.
	retries    = 5
	firstRetry = time.Second
	lastRetry  = 30 * time.Second

	// The first freeChanges changes that watches report of a resource queue it at once. Further ones
	// wait, with pauses that grow to slowest, until no change came for calmAfter. So statuses that
	// change on the way to readiness are handled at once, and a fight with another writer costs little.
	freeChanges = 10
	firstPause  = 100 * time.Millisecond
	slowest     = 10 * time.Second
	calmAfter   = 30 * time.Second
)

func newQueue(jitter func(time.Duration) time.Duration) *queue {
	return &queue{items: map[string]*item{}, ran: map[string]run{}, jitter: jitter}
}

// add queues an event of the bus. Its resource is due at once, and its count of failures starts anew.
func (q *queue) add(t task, now time.Time) {
	i := q.item(t)
	i.failures = 0
	how := fresh
	if last, ok := q.ran[t.ID]; ok && t.Generation <= last.generation {
		how = repeated
	}
	q.wait(i, now, how)
}

// change queues a change that a watch reports. Watches know no trace: the change belongs to the trace
// of the run that applied the object.
func (q *queue) change(t task, now time.Time) {
	i := q.item(t)
	if i.task.trace == "" && i.running {
		i.task.trace = i.began.trace
	} else if i.task.trace == "" {
		i.task.trace = q.ran[t.ID].trace
	}
	if now.Sub(i.changed) > calmAfter {
		i.changes = 0
	}
	i.changes++
	i.changed = now
	var pause time.Duration
	if over := i.changes - freeChanges; over > 0 {
		pause = min(firstPause<<min(over-1, 10), slowest)
	}
	how := fresh
	if pause > 0 {
		how = repeated
	}
	q.wait(i, now.Add(pause), how)
}

// item returns the resource's item, updated to the newest event.
func (q *queue) item(t task) *item {
	i := q.items[t.ID]
	if i == nil {
		i = &item{task: t, index: -1}
		q.items[t.ID] = i
		return i
	}
	idle := i.index < 0 && !i.again
	if t.Generation >= i.task.Generation {
		i.task.Event = t.Event
	}
	i.task.trace = cmp.Or(t.trace, i.task.trace)
	if idle {
		i.task.trace, i.task.since = t.trace, t.since
	}
	return i
}

// wait makes an item due at a time, or earlier if it waits for an earlier time already.
func (q *queue) wait(i *item, at time.Time, how class) {
	if waits := i.index >= 0 || i.again; waits {
		if i.at.Before(at) {
			at = i.at
		}
		how = min(how, i.class)
	}
	if i.running {
		i.again, i.at, i.class = true, at, how
		return
	}
	seq := i.seq
	if i.index >= 0 {
		heap.Remove(&q.due[i.class], i.index)
	} else {
		q.seq++
		seq = q.seq
	}
	i.at, i.seq, i.class = at, seq, how
	heap.Push(&q.due[how], i)
}

// next removes a due task. Without one it returns how long to wait until one is due; 0 means that none
// waits.
func (q *queue) next(now time.Time) (t task, ok bool, wait time.Duration) {
	order := [2]class{fresh, repeated}
	if q.turn%repeatedTurn == repeatedTurn-1 {
		order = [2]class{repeated, fresh}
	}
	for _, c := range order {
		if len(q.due[c]) == 0 {
			continue
		}
		first := q.due[c][0]
		left := first.at.Sub(now)
		if left <= 0 {
			heap.Pop(&q.due[c])
			first.running, first.began = true, first.task
			q.turn++
			return first.task, true, 0
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return task{}, false, wait
}

// done records how a run ended and queues its retry or repetition.
func (q *queue) done(id string, how ending, now time.Time) {
	i := q.items[id]
	i.running = false
	switch how {
	case failed:
		i.failures++
	case succeeded:
		i.failures = 0
		q.ran[id] = run{max(i.began.Generation, q.ran[id].generation), now, i.began.trace}
	case notBegun:
		i.failures = 0
	}
	again := i.again
	i.again = false
	retry := how == failed && i.failures <= retries
	if again {
		q.wait(i, i.at, i.class)
	}
	if retry {
		pause := min(firstRetry<<(i.failures-1), lastRetry)
		if !again {
			i.task.since = now
		}
		q.wait(i, now.Add(q.jitter(pause)), repeated)
	}
	if i.failures > retries {
		i.failures = 0 // the sentinel's next event starts anew
	}
	q.sweep(now)
	if i.index < 0 && now.Sub(i.changed) > calmAfter {
		delete(q.items, id)
	}
}

// sweep removes items of resources at rest, and runs older than rememberFor, at most every calmAfter.
func (q *queue) sweep(now time.Time) {
	if now.Sub(q.swept) < calmAfter {
		return
	}
	q.swept = now
	for id, i := range q.items {
		if i.index < 0 && !i.running && now.Sub(i.changed) > calmAfter {
			delete(q.items, id)
		}
	}
	for id, r := range q.ran {
		if now.Sub(r.at) > rememberFor {
			delete(q.ran, id)
		}
	}
}

// waiting returns how many resources wait, due or not.
func (q *queue) waiting() int { return len(q.due[fresh]) + len(q.due[repeated]) }

// dueHeap is a heap.Interface by due time, then by order of arrival.
type dueHeap []*item

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(a, b int) bool {
	return cmp.Or(h[a].at.Compare(h[b].at), cmp.Compare(h[a].seq, h[b].seq)) < 0
}
func (h dueHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].index, h[b].index = a, b
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	i := x.(*item)
	i.index = len(*h)
	*h = append(*h, i)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	last.index = -1
	return last
}
