package ops

import "maps"

// waitingOperation is an operation that waits for a task.
type waitingOperation struct {
	id, scope, resource string
}

// queue decides on which operations a process works. It limits their number in all and in each scope, and
// takes the next one from the scope with the fewest tasks, so that no scope delays the others. A task that has
// paused for long gives its place to a waiting operation, so that no operations keep all places for hours.
type queue struct {
	limit, share int // how many tasks may run: in all, and of one scope

	running map[string]int                // tasks, by scope
	total   int                           // sum of running
	waiting map[string][]waitingOperation // by scope, in the order of their arrival
	queued  map[string]bool               // ids of the waiting operations
}

func newQueue(limit, share int) *queue {
	return &queue{limit: limit, share: share, running: map[string]int{}, waiting: map[string][]waitingOperation{},
		queued: map[string]bool{}}
}

// add puts an operation at the end of the queue of its scope, unless it waits already.
func (q *queue) add(w waitingOperation) {
	if !q.queued[w.id] {
		q.queued[w.id] = true
		q.waiting[w.scope] = append(q.waiting[w.scope], w)
	}
}

// takeNext takes the next operation out of the queue and counts a task for it. found is false when none waits or the
// limits permit no more tasks.
func (q *queue) takeNext() (next waitingOperation, found bool) {
	if q.total >= q.limit {
		return next, false
	}
	scope, found := q.nextScope(q.running, nil)
	if !found {
		return next, false
	}
	next = q.waiting[scope][0]
	delete(q.queued, next.id)
	if q.waiting[scope] = q.waiting[scope][1:]; len(q.waiting[scope]) == 0 {
		delete(q.waiting, scope)
	}
	q.running[scope]++
	q.total++
	return next, true
}

// nextScope returns the scope with the fewest running tasks of those that have less than their share and more waiting
// operations than taken says.
func (q *queue) nextScope(running, taken map[string]int) (next string, found bool) {
	fewest := q.share
	for scope, list := range q.waiting {
		if n := running[scope]; n < fewest && len(list) > taken[scope] {
			fewest, next, found = n, scope, true
		}
	}
	return next, found
}

// displace returns those of the tasks, given by their scopes, whose places waiting operations shall get. A task never
// ends for an operation of a scope that has more tasks.
func (q *queue) displace(tasks []*task) (displaced []*task) {
	running, taken := maps.Clone(q.running), map[string]int{}
	for _, t := range tasks {
		running[t.resource.scope]--
		next, found := q.nextScope(running, taken)
		if !found || running[next] > running[t.resource.scope] {
			running[t.resource.scope]++
			continue
		}
		running[next]++
		taken[next]++
		displaced = append(displaced, t)
	}
	return displaced
}

// countEndedTask makes room for another task of a scope.
func (q *queue) countEndedTask(scope string) {
	q.total--
	if q.running[scope]--; q.running[scope] == 0 {
		delete(q.running, scope)
	}
}
