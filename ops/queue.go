package ops

// waitingOperation is an operation that waits for a task.
type waitingOperation struct {
	id, scope, resource string
}

// queue decides on which operations a process works. It limits their number in all and in each scope, and
// takes the next one from the scope with the fewest tasks, so that no scope delays the others.
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
	fewest := q.share
	for scope, list := range q.waiting {
		if n := q.running[scope]; n < fewest {
			fewest, next, found = n, list[0], true
		}
	}
	if !found {
		return next, false
	}
	delete(q.queued, next.id)
	if q.waiting[next.scope] = q.waiting[next.scope][1:]; len(q.waiting[next.scope]) == 0 {
		delete(q.waiting, next.scope)
	}
	q.running[next.scope]++
	q.total++
	return next, true
}

// countEndedTask makes room for another task of a scope.
func (q *queue) countEndedTask(scope string) {
	q.total--
	if q.running[scope]--; q.running[scope] == 0 {
		delete(q.running, scope)
	}
}
