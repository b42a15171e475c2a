package adapter

import (
	"cmp"
	"container/heap"
	"time"

	"atoll.dev/internal/indexheap"
)

// queue orders the runs of resources: at most one run for each resource, however many events come.
// It has no clock and no goroutine; its owner passes the time.
//
// An event for a resource that waits adds no run: the waiting task takes the event's generation if
// that is newer. An event for a resource that runs queues one more run. The queue retries a failed
// run five times with back-off; after that the sentinel sends the event again.
//
// Fresh tasks go first: generations that did not run yet, and changes that watches report. The
// sentinel sends the events of unreconciled resources again and again. If these repetitions delayed
// fresh tasks, more resources would stay unreconciled and the sentinel would repeat more events. So
// a repetition goes first in every fourth turn only.
type queue struct {
	items    map[string]*item         // by the resource's ID
	due      [2]dueHeap               // waiting items by class, also those whose time is in the future
	lastRuns map[string]successfulRun // by the resource's ID
	turn     int                      // counts the tasks that next returned
	seq      int64                    // the last item.seq
	sweptAt  time.Time

	jitter func(time.Duration) time.Duration // varies the back-off of a retry
}

// successfulRun describes the last successful run of a resource.
type successfulRun struct {
	generation int64 // the highest generation of all successful runs
	endedAt    time.Time
	trace      string
}

// class is the priority of an item, and the index of its heap in queue.due.
type class int

const (
	fresh class = iota
	repeated

	repetitionEvery = 4         // in every fourth turn a repetition goes first
	rememberRunsFor = time.Hour // after that an event of the same generation counts as fresh
)

// item is the state of one resource: it waits in a heap, or runs, or neither.
type item struct {
	task        task      // the next run, built from the newest event
	dueAt       time.Time // the earliest start of the next run
	seq         int64     // orders items that are due at the same time
	class       class     // of the next run
	index       int       // in its heap; -1 when the item is in no heap
	running     bool
	runningTask task      // the run in progress
	runAgain    bool      // another run follows the run in progress, not before dueAt
	failures    int       // in a row
	startedAt   time.Time // when the last run began
	changes     int       // reported by watches, with less than settledAfter between two of them
	changedAt   time.Time // when a watch reported the last change
	repairs     int       // runs of one generation that wrote objects, also failed ones, during these changes
	repairedAt  time.Time // when the last of these runs ended
	repairedGen int64     // the generation of these runs
}

// task is one run.
type task struct {
	Event
	trace string    // W3C traceparent of its cause; may be empty
	since time.Time // when the first of its events was queued
}

const (
	// A failed run is retried after firstRetryPause, then after twice that, and so on, at most
	// maxRetries times.
	maxRetries        = 5
	firstRetryPause   = time.Second
	longestRetryPause = 30 * time.Second

	// The first promptChanges changes that watches report of a resource make it due at once. For
	// further changes its runs begin at least changeInterval apart, so that an object whose status
	// changes all the time causes few runs. When no change came for settledAfter, the count begins
	// anew.
	promptChanges  = 10
	changeInterval = 200 * time.Millisecond
	settledAfter   = 30 * time.Second

	// When another writer changes an object back as often as a run writes it, only pauses end the
	// loop. After more than promptRepairs runs of the same generation that wrote, a change makes
	// its resource due after a pause since the last such run, which doubles up to
	// longestRepairPause. Runs that write nothing, because only statuses changed, do not count.
	promptRepairs      = 10
	firstRepairPause   = 100 * time.Millisecond
	longestRepairPause = 10 * time.Second
)

func newQueue(jitter func(time.Duration) time.Duration) *queue {
	return &queue{items: map[string]*item{}, lastRuns: map[string]successfulRun{}, jitter: jitter}
}

// add queues an event of the bus. Its resource is due at once, and its count of failures starts
// anew.
func (q *queue) add(t task, now time.Time) {
	i := q.updateItem(t)
	i.failures = 0
	priority := fresh
	if last, ok := q.lastRuns[t.ID]; ok && t.Generation <= last.generation {
		priority = repeated
	}
	q.schedule(i, now, priority)
}

// change queues a change that a watch reports. A watch reports no trace, so the task gets the trace
// of the resource's run in progress or of its last successful run.
func (q *queue) change(t task, now time.Time) {
	i := q.updateItem(t)
	if i.task.trace == "" && i.running {
		i.task.trace = i.runningTask.trace
	} else if i.task.trace == "" {
		i.task.trace = q.lastRuns[t.ID].trace
	}
	if now.Sub(i.changedAt) > settledAfter {
		i.changes, i.repairs = 0, 0
	}
	i.changes++
	i.changedAt = now
	dueAt, priority := now, fresh
	if earliest := i.startedAt.Add(changeInterval); i.changes > promptChanges && earliest.After(dueAt) {
		dueAt = earliest
	}
	if earliest := i.nextRepair(now); earliest.After(dueAt) {
		dueAt, priority = earliest, repeated
	}
	q.schedule(i, dueAt, priority)
}

// nextRepair returns the earliest time at which a change may cause a run, after the repairs so far;
// the zero time when they are few. The run in progress counts as a repair that ends now.
func (i *item) nextRepair(now time.Time) time.Time {
	over := i.repairs - promptRepairs
	if over <= 0 {
		return time.Time{}
	}
	last := i.repairedAt
	if i.running {
		last = now
	}
	return last.Add(min(firstRepairPause<<min(over-1, 10), longestRepairPause))
}

// countRepair counts a run that ended and wrote objects.
func (i *item) countRepair(now time.Time) {
	if i.repairedGen != i.runningTask.Generation {
		i.repairs, i.repairedGen = 0, i.runningTask.Generation
	}
	i.repairs++
	i.repairedAt = now
}

// updateItem returns the resource's item, and first gives its next task the event, if that is not
// older, and the trace. It makes the item if the queue has none.
func (q *queue) updateItem(t task) *item {
	i := q.items[t.ID]
	if i == nil {
		i = &item{task: t, index: -1}
		q.items[t.ID] = i
		return i
	}
	idle := i.index < 0 && !i.runAgain
	if t.Generation >= i.task.Generation {
		i.task.Event = t.Event
	}
	i.task.trace = cmp.Or(t.trace, i.task.trace)
	if idle {
		i.task.trace, i.task.since = t.trace, t.since
	}
	return i
}

// schedule makes an item due at a time, or starts its next run then when it runs now. An item that
// waits already keeps the earlier of both times and the higher of both priorities.
func (q *queue) schedule(i *item, at time.Time, priority class) {
	if waits := i.index >= 0 || i.runAgain; waits {
		if i.dueAt.Before(at) {
			at = i.dueAt
		}
		priority = min(priority, i.class)
	}
	if i.running {
		i.runAgain, i.dueAt, i.class = true, at, priority
		return
	}
	seq := i.seq
	if i.index >= 0 {
		heap.Remove(&q.due[i.class], i.index)
	} else {
		q.seq++
		seq = q.seq
	}
	i.dueAt, i.seq, i.class = at, seq, priority
	heap.Push(&q.due[priority], i)
}

// next takes a due task out of the queue and marks its resource as running. When no task is due, ok
// is false and wait is the time until one is; wait is 0 when the queue is empty.
func (q *queue) next(now time.Time) (t task, ok bool, wait time.Duration) {
	order := [2]class{fresh, repeated}
	if q.turn%repetitionEvery == repetitionEvery-1 {
		order = [2]class{repeated, fresh}
	}
	for _, c := range order {
		if len(q.due[c]) == 0 {
			continue
		}
		first := q.due[c][0]
		left := first.dueAt.Sub(now)
		if left <= 0 {
			heap.Pop(&q.due[c])
			first.running, first.runningTask, first.startedAt = true, first.task, now
			q.turn++
			return first.task, true, 0
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return task{}, false, wait
}

// endRun records how the resource's run in progress ended. It queues the retry of a failed run, and
// the run that an event during this run requested.
func (q *queue) endRun(id string, result ending, now time.Time) {
	i := q.items[id]
	i.running = false
	switch result {
	case failed, failedAfterWrite:
		i.failures++
	case succeeded, repaired:
		i.failures = 0
		q.lastRuns[id] = successfulRun{max(i.runningTask.Generation, q.lastRuns[id].generation), now,
			i.runningTask.trace}
	case notBegun:
		i.failures = 0
	}
	if result.wrote() {
		i.countRepair(now)
	}
	runAgain := i.runAgain
	i.runAgain = false
	retry := result.isFailure() && i.failures <= maxRetries
	if runAgain {
		q.schedule(i, i.dueAt, i.class)
	}
	if retry {
		pause := min(firstRetryPause<<(i.failures-1), longestRetryPause)
		if !runAgain {
			i.task.since = now
		}
		q.schedule(i, now.Add(q.jitter(pause)), repeated)
	}
	if i.failures > maxRetries {
		i.failures = 0 // the sentinel's next event starts anew
	}
	q.sweep(now)
	if i.index < 0 && now.Sub(i.changedAt) > settledAfter {
		delete(q.items, id)
	}
}

// sweep forgets resources that neither wait nor run and have not changed for settledAfter, and
// successful runs older than rememberRunsFor. It works at most once in settledAfter.
func (q *queue) sweep(now time.Time) {
	if now.Sub(q.sweptAt) < settledAfter {
		return
	}
	q.sweptAt = now
	for id, i := range q.items {
		if i.index < 0 && !i.running && now.Sub(i.changedAt) > settledAfter {
			delete(q.items, id)
		}
	}
	for id, r := range q.lastRuns {
		if now.Sub(r.endedAt) > rememberRunsFor {
			delete(q.lastRuns, id)
		}
	}
}

// countWaiting returns the number of resources that wait, due now or later.
func (q *queue) countWaiting() int { return len(q.due[fresh]) + len(q.due[repeated]) }

// dueHeap is a heap of items by due time, then by order of arrival.
type dueHeap = indexheap.Heap[*item]

// IsBefore implements indexheap.Item.
func (i *item) IsBefore(other *item) bool {
	return cmp.Or(i.dueAt.Compare(other.dueAt), cmp.Compare(i.seq, other.seq)) < 0
}

// SetHeapIndex implements indexheap.Item.
func (i *item) SetHeapIndex(index int) { i.index = index }
