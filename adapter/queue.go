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
//
// What is new goes first: generations that were not run yet, and what watches
// tell. The sentinel repeats what stays unreconciled; under load that would
// delay the new by all that is old, and more is repeated the longer it takes.
// Every fourth turn is for repetitions, so that they have theirs.
type queue struct {
	items map[string]*item // by the resource's ID
	due   [2]dueHeap       // what is new; repetitions
	ran   map[string]run   // by ID: the last generation that was run without a failure
	turn  int
	seq   int64
	swept time.Time

	jitter func(time.Duration) time.Duration // of a back-off
}

// run is a generation that was run, when, and the trace that it belongs to.
type run struct {
	generation int64
	at         time.Time
	trace      string
}

// class is a heap of the queue.
type class int

const (
	fresh class = iota
	repeated

	repeatedTurn = 4 // every so many turns is for repetitions
	rememberFor  = time.Hour
)

// item is one resource.
type item struct {
	task     task
	at       time.Time // when it is due; while it waits
	seq      int64     // order of those that are due at the same time
	class    class     // its heap, while it waits; or to be
	index    int       // in the heap; -1 when it does not wait
	running  bool
	began    task // the run under way
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
	return &queue{items: map[string]*item{}, ran: map[string]run{}, jitter: jitter}
}

// add takes an event of the bus: its resource is due at once, and what failed
// before is forgotten.
func (q *queue) add(t task, now time.Time) {
	i := q.item(t)
	i.failures = 0
	how := fresh
	if last, ok := q.ran[t.ID]; ok && t.Generation <= last.generation {
		how = repeated
	}
	q.wait(i, now, how)
}

// change takes what a watch tells. A watch knows no trace: what became of an
// object belongs to the one of the run that applied it.
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

// next takes a task that is due. When there is none, it says how long until
// one is; 0 is until something happens.
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

// done ends a run.
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
	for id, r := range q.ran {
		if now.Sub(r.at) > rememberFor {
			delete(q.ran, id)
		}
	}
}

// waiting is how many resources wait, due or not.
func (q *queue) waiting() int { return len(q.due[fresh]) + len(q.due[repeated]) }

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
