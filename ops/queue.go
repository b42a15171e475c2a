package ops

// waitingOperation is an operation that waits for a task.
type waitingOperation struct {
	id, scope, resource string
}

// queue decides on which operations a process works. It limits their number in all and in each scope, and
// takes the next one from the scope with the fewest tasks, so that no scope delays the others.
type queue struct {
	limit, share int // of tasks: in all, and of one scope

	running map[string]int                // tasks, by scope
	total   int                           // of running
	waiting map[string][]waitingOperation // by scope, in the order of their arrival
	known   map[string]bool               // ids of the waiting operations
}

func newQueue(limit, share int) *queue {
	return &queue{limit: limit, share: share, running: map[string]int{}, waiting: map[string][]waitingOperation{},
		known: map[string]bool{}}
}

// add adds an operation, unless it waits already.
func (q *queue) add(w waitingOperation) {
	if !q.known[w.id] {
		q.known[w.id] = true
		q.waiting[w.scope] = append(q.waiting[w.scope], w)
	}
}

// takeNext takes the next operation for a task. found is false when none may begin now.
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
	delete(q.known, next.id)
	if q.waiting[next.scope] = q.waiting[next.scope][1:]; len(q.waiting[next.scope]) == 0 {
		delete(q.waiting, next.scope)
	}
	q.running[next.scope]++
	q.total++
	return next, true
}

// endTask ends a task of a scope.
func (q *queue) endTask(scope string) {
	q.total--
	if q.running[scope]--; q.running[scope] == 0 {
		delete(q.running, scope)
	}
}
