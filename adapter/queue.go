package adapter

import (
	"cmp"
	"container/heap"
	"time"
)

// queue is what is to be done, by resource: at most one run for each, however
// many events there are. It has no clock and no goroutine; whoever owns it
// passes the time.
//
// An event is a hint. One that comes while its resource waits changes nothing
// but the event's content, to the newest generation; one that comes while it is
// run has it run again. A run that failed is repeated a few times, later and
// later; then it is the sentinel's to send again.
type queue struct {
	items map[string]*item // by the resource's ID
	due   dueHeap
	seq   int64
	swept time.Time

	jitter func(time.Duration) time.Duration // of a back-off
}

// item is one resource.
type item struct {
	task     task
	at       time.Time // when it is due; while it waits
	seq      int64     // order of those that are due at the same time
	index    int       // in the heap; -1 when it does not wait
	running  bool
	again    bool // run again when the run under way ends, not before at
	failures int  // in a row
	changes  int  // told by watches, lately
	changed  time.Time
}

// task is one run.
type task struct {
	Event
	trace string    // W3C traceparent of what caused it; may be empty
	since time.Time // when it was first asked for
}

const (
	// retries of a run that failed, after firstRetry, twice that, and so on.
	retries    = 5
	firstRetry = time.Second
	lastRetry  = 30 * time.Second

	// A watch may tell so often of a resource at once; then less and less often,
	// up to slowest, until it was calm for calmAfter. Statuses that change on
	// their way to readiness are quick, a fight with another writer is not.
	freeChanges = 10
	firstPause  = 100 * time.Millisecond
	slowest     = 10 * time.Second
	calmAfter   = 30 * time.Second
)

func newQueue(jitter func(time.Duration) time.Duration) *queue {
	return &queue{items: map[string]*item{}, jitter: jitter}
}

// add takes an event of the bus: its resource is due at once, and what failed
// before is forgotten.
func (q *queue) add(t task, now time.Time) {
	i := q.item(t)
	i.failures = 0
	q.wait(i, now)
}

// change takes what a watch tells.
func (q *queue) change(t task, now time.Time) {
	i := q.item(t)
	if now.Sub(i.changed) > calmAfter {
		i.changes = 0
	}
	i.changes++
	i.changed = now
	var pause time.Duration
	if over := i.changes - freeChanges; over > 0 {
		pause = min(firstPause<<min(over-1, 10), slowest)
	}
	q.wait(i, now.Add(pause))
}

// item is the resource's, with the newest event.
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

// wait makes the resource due then, or earlier if it already is.
func (q *queue) wait(i *item, at time.Time) {
	switch {
	case i.running:
		if !i.again || at.Before(i.at) {
			i.at = at
		}
		i.again = true
	case i.index < 0:
		q.seq++
		i.at, i.seq = at, q.seq
		heap.Push(&q.due, i)
	case at.Before(i.at):
		i.at = at
		heap.Fix(&q.due, i.index)
	}
}

// next takes a task that is due. When there is none, it says how long until
// one is; 0 is until something happens.
func (q *queue) next(now time.Time) (t task, ok bool, wait time.Duration) {
	if len(q.due) == 0 {
		return task{}, false, 0
	}
	first := q.due[0]
	if wait := first.at.Sub(now); wait > 0 {
		return task{}, false, wait
	}
	heap.Pop(&q.due)
	first.running = true
	return first.task, true, 0
}

// done ends a run.
func (q *queue) done(id string, failed bool, now time.Time) {
	i := q.items[id]
	i.running = false
	if failed {
		i.failures++
	} else {
		i.failures = 0
	}
	again := i.again
	i.again = false
	retry := failed && i.failures <= retries
	if again {
		q.wait(i, i.at)
	}
	if retry {
		pause := min(firstRetry<<(i.failures-1), lastRetry)
		if !again {
			i.task.since = now
		}
		q.wait(i, now.Add(q.jitter(pause)))
	}
	if i.failures > retries {
		i.failures = 0 // the sentinel's next event begins anew
	}
	q.sweep(now)
	if i.index < 0 && now.Sub(i.changed) > calmAfter {
		delete(q.items, id)
	}
}

// sweep forgets resources that are at rest; it looks now and then.
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
}

// waiting is how many resources wait, due or not.
func (q *queue) waiting() int { return len(q.due) }

// dueHeap has the item first that is due first; of those of the same time, the
// one that was there first.
type dueHeap []*item

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(a, b int) bool {
	return cmp.Or(h[a].at.Compare(h[b].at), cmp.Compare(h[a].seq, h[b].seq)) < 0
}
func (h dueHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].index, h[b].index = a, b
}

// Push is heap.Interface's.
func (h *dueHeap) Push(x any) {
	i := x.(*item)
	i.index = len(*h)
	*h = append(*h, i)
}

// Pop is heap.Interface's.
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	last.index = -1
	return last
}
