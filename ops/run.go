package ops

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"atoll.dev/internal/pause"
	"atoll.dev/store"
)

const (
	// duePause is how often Run reads the operations whose time in nextRead has come. The feed does not show whether
	// a lease was renewed, so the engine reads the operation when the lease that it knows has ended.
	duePause = 5 * time.Second
	// listPause is how often Run lists all unfinished operations. The feed has shown each of them before; the list
	// finds an operation that a bug left out of nextRead.
	listPause = 5 * time.Minute
	// removePause is how often Run removes operations that are older than the retention.
	removePause = time.Hour
	// defaultWorkPause is the time until Work is called again when there is no Wake and Outcome.Again is 0.
	defaultWorkPause = 15 * time.Second
)

// task is the goroutine that works on one operation.
type task struct {
	resource resourceKey
	wake     chan struct{} // a value makes the task call Work at once
	displace chan struct{} // a value makes the task give its place to another operation when it pauses
	ended    chan struct{} // closed when another request has ended the operation

	// firstPause is when the task first paused between two calls of Work; zero: not yet. The engine's mu guards it.
	firstPause time.Time
}

// resourceKey names the resource of an operation.
type resourceKey struct{ scope, resource string }

// Run works on operations until ctx ends: on new ones when the feed shows them, on those of other
// processes when their leases have expired.
func (e *Engine) Run(ctx context.Context) error {
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		_ = e.o.Store.Follow(ctx, store.FollowOptions{Kinds: []store.Kind{Kind}}, // it ends with ctx only
			func(ctx context.Context, b store.Batch) error {
				for _, d := range b.Documents {
					if s, err := decode(d); err == nil && !d.Removed {
						e.enqueueIfDue(ctx, s)
					}
				}
				return nil
			})
	}()
	defer func() {
		<-followed
		e.group.Wait()
	}()
	removed, listed := time.Time{}, time.Now()
	for pause.For(ctx, duePause) {
		e.displaceTasks()
		read := e.enqueueDue
		if time.Since(listed) >= listPause {
			read, listed = e.enqueueUnfinished, time.Now()
		}
		if err := read(ctx); err != nil && ctx.Err() == nil {
			e.o.Log.Warn("reading unfinished operations failed", "error", err)
		}
		if time.Since(removed) < removePause {
			continue
		}
		removed = time.Now()
		if err := e.removeExpired(ctx); err != nil && ctx.Err() == nil {
			e.o.Log.Warn("removing old operations failed", "error", err)
		}
	}
	return context.Cause(ctx)
}

// enqueueUnfinished calls enqueueIfDue with every unfinished operation.
func (e *Engine) enqueueUnfinished(ctx context.Context) error {
	return e.enqueueEach(ctx, unfinishedQuery)
}

// enqueueEach calls enqueueIfDue with the operations of a query. An operation that cannot be decoded delays no other.
func (e *Engine) enqueueEach(ctx context.Context, q store.Query) error {
	return e.eachDocument(ctx, q, func(d store.Document) error {
		s, err := decode(d)
		if err != nil {
			e.logUnreadable(d, err)
			return nil
		}
		e.enqueueIfDue(ctx, s)
		return nil
	})
}

// enqueueDue reads the operations whose time in nextRead has come, and calls enqueueIfDue with each.
func (e *Engine) enqueueDue(ctx context.Context) error {
	ids := e.takeDue()
	if len(ids) == 0 {
		return nil
	}
	err := e.enqueueEach(ctx, store.Query{Kind: Kind, Deletion: store.WithDeleting, Limit: 1000,
		Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{ids}}})
	if err != nil { // read them again
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, id := range ids {
			if _, has := e.nextRead[id]; !has {
				e.nextRead[id] = e.o.Now()
			}
		}
	}
	return err
}

// takeDue removes from nextRead the operations whose time has come, and returns their ids.
func (e *Engine) takeDue() (ids []string) {
	now := e.o.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, at := range e.nextRead {
		if !now.Before(at) {
			ids = append(ids, id)
			delete(e.nextRead, id)
		}
	}
	return ids
}

// unfinishedQuery lists the operations that need a process. The subquery reads the index of the facets, and
// the list then reads these ids only.
var unfinishedQuery = store.Query{Kind: Kind, Deletion: store.WithDeleting, Limit: 1000,
	Where: store.Fragment{SQL: `d.id = any(array(select f.id from feed f where f.kind = '` + string(Kind) +
		`' and f.facets @> array['` + unfinished + `']))`}}

// logUnreadable logs once for each version that an operation cannot be decoded.
func (e *Engine) logUnreadable(d store.Document, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unreadable[d.ID] != d.Version {
		e.unreadable[d.ID] = d.Version
		e.o.Log.Error("an operation cannot be read; nobody works on it", "operation", d.ID, "error", err)
	}
}

// removeExpired removes terminal operations that are older than the retention, the oldest first.
func (e *Engine) removeExpired(ctx context.Context) error {
	return e.eachDocument(ctx, endedBefore(e.o.Now().Add(-e.o.Retention)), func(d store.Document) error {
		if err := e.o.Store.Remove(ctx, Kind, d.ID, 0); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		return nil
	})
}

// endedBefore lists the operations that ended before a time, in the order of their index.
func endedBefore(at time.Time) store.Query {
	return store.Query{Kind: Kind, Deletion: store.OnlyDeleting, WithoutSpec: true,
		Where:   store.Fragment{SQL: "d.deleted_at < $1", Args: []any{at}},
		OrderBy: []store.Order{{Expr: "d.deleted_at", Type: "timestamptz"}}}
}

// eachDocument calls f with the documents of a query, page after page.
func (e *Engine) eachDocument(ctx context.Context, q store.Query, f func(store.Document) error) error {
	for {
		page, err := e.o.Store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			if err := f(d); err != nil {
				return err
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// Wake makes the worker look at a resource at once, and reports whether this process works on an operation of it.
func (e *Engine) Wake(scope, resource string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	tasks := e.byResource[resourceKey{scope, resource}]
	for _, t := range tasks {
		t.signal()
	}
	return len(tasks) > 0
}

// signal makes the task call Work at once.
func (t *task) signal() { offer(t.wake) }

// offer sends a value to a channel that holds at most one.
func offer(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// displaceTasks makes tasks whose operations only wait, those that wait longest first, give their places to other
// operations. A displaced operation goes to the end of the queue.
func (e *Engine) displaceTasks() {
	now := e.o.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	var old []*task
	for _, t := range e.tasks {
		if !t.firstPause.IsZero() && now.Sub(t.firstPause) >= e.o.PlaceFor {
			old = append(old, t)
		}
	}
	slices.SortFunc(old, func(a, b *task) int { return a.firstPause.Compare(b.firstPause) })
	for _, t := range e.queue.displace(old) {
		offer(t.displace)
	}
}

// recordPause records that a task pauses between two calls of Work.
func (e *Engine) recordPause(t *task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.firstPause.IsZero() {
		t.firstPause = e.o.Now()
	}
}

// markEnded ends the pause in which a task waits to call Work again: its operation has ended. The caller holds the
// engine's mu.
func (t *task) markEnded() {
	select {
	case <-t.ended:
	default:
		close(t.ended)
	}
}

// enqueueIfDue handles an operation that was just read. If no process has its lease and its next attempt is due, the
// operation goes into the queue. If it is leased or not due yet, nextRead gets the time to read it again. If it has
// ended and this process works on it, the task stops waiting.
func (e *Engine) enqueueIfDue(ctx context.Context, s State) {
	now := e.o.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	running := e.tasks[s.ID]
	if running != nil && s.Status.IsTerminal() {
		running.markEnded() // by this task, or because another request has canceled the operation
	}
	delete(e.nextRead, s.ID)
	switch {
	case running != nil || !e.needsWork(s) || ctx.Err() != nil:
		return
	case s.isLeased(now):
		e.nextRead[s.ID] = s.Lease.Until
		return
	case now.Before(s.dueAt()):
		e.nextRead[s.ID] = s.dueAt()
		return
	}
	e.queue.add(waitingOperation{id: s.ID, scope: s.Scope, resource: s.Resource})
	e.startTasks(ctx)
}

// needsWork reports whether this process has to do something for an operation.
func (e *Engine) needsWork(s State) bool {
	return !s.Status.IsTerminal() || s.hasPendingNotification() && e.o.Notifier != nil
}

// startTasks starts as many tasks as the queue permits. The caller holds e.mu.
func (e *Engine) startTasks(ctx context.Context) {
	for {
		next, found := e.queue.takeNext()
		if !found {
			return
		}
		t := &task{resource: resourceKey{next.scope, next.resource}, wake: make(chan struct{}, 1),
			displace: make(chan struct{}, 1), ended: make(chan struct{})}
		e.tasks[next.id] = t
		e.byResource[t.resource] = append(e.byResource[t.resource], t)
		e.group.Go(func() {
			e.runTask(ctx, t, next.id)
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.tasks, next.id)
			e.removeTask(t)
			e.nextRead[next.id] = e.o.Now() // it may be unfinished
			e.queue.countEndedTask(next.scope)
			if ctx.Err() == nil {
				e.startTasks(ctx)
			}
		})
	}
}

// runTask works on an operation until it has ended, the lease is lost, the next attempt is far, or ctx
// ends. It begins again after short pauses between failures; enqueueDue finds the operation after long ones.
func (e *Engine) runTask(ctx context.Context, t *task, id string) {
	for {
		mine := e.gate.join(beginning, e.o.Now())
		select {
		case <-mine.ready:
		case <-ctx.Done():
			e.gate.leave(mine)
			return
		}
		s, err := e.commit(ctx, id, Event{Kind: Acquire, Holder: e.o.Holder, For: e.o.Lease})
		if err != nil {
			e.gate.leave(mine)
			e.logFailure(ctx, "taking the lease of an operation failed", s, err)
			return // enqueueDue finds the operation again
		}
		if s.Status.IsTerminal() {
			e.gate.leave(mine)
			s, err = e.sendNotification(ctx, s)
		} else {
			s, err = e.workOn(ctx, t, s, mine)
		}
		if err != nil {
			e.logFailure(ctx, "working on an operation failed", s, err)
			return
		}
		if !e.needsWork(s) || s.dueAt().Sub(e.o.Now()) > duePause || e.waitUntil(ctx, s.dueAt()) != nil {
			return
		}
	}
}

// errDisplaced ends a task whose place another operation gets.
var errDisplaced = errors.New("another operation takes the place")

// logFailure logs an error. It does not log the errors that another process's work on the operation causes, that of a
// displaced task, nor any after ctx has ended.
func (e *Engine) logFailure(ctx context.Context, what string, s State, err error) {
	for _, expected := range []error{ErrEnded, ErrFenced, ErrLeased, ErrTooEarly, errDisplaced,
		store.ErrNotFound} {
		if errors.Is(err, expected) {
			return
		}
	}
	if ctx.Err() == nil {
		e.o.Log.LogAttrs(ctx, slog.LevelWarn, what, slog.String("operation", s.ID), slog.Any("error", err))
	}
}

// waitUntil waits until a time, and returns the cause of ctx if that ends first.
func (e *Engine) waitUntil(ctx context.Context, at time.Time) error {
	if d := at.Sub(e.o.Now()); d > 0 && !pause.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// removeTask removes a task from byResource. The caller holds e.mu.
func (e *Engine) removeTask(t *task) {
	others := slices.DeleteFunc(e.byResource[t.resource], func(other *task) bool { return other == t })
	if e.byResource[t.resource] = others; len(others) == 0 {
		delete(e.byResource, t.resource)
	}
}

// release gives the lease up, so that another process continues without waiting for its end.
func (e *Engine) release(ctx context.Context, s State) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, err := e.commit(ctx, s.ID, Event{Kind: Release, Fence: s.Fence})
	return err
}
