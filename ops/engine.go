package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"atoll.dev/store"
)

// Kind is the kind of the documents of operations. The scope of a document is that of its operation,
// its name the resource. A terminal operation has DeletedAt, which frees the name: the unique names of
// the store let a resource have one active operation, also with several processes on one database.
const Kind store.Kind = "Operation"

// StoreKind returns the kind with which a service opens its store. Indexes find the unfinished operations
// by a facet and the ended ones by the time of their end, so that neither query reads the operations that
// are only kept for readers.
func StoreKind() store.KindSpec {
	return store.KindSpec{Kind: Kind, History: true, Owner: func(d store.Document) string { return d.Scope },
		Observed: isRenewal, Facets: facetsOf,
		Indexes: []store.Index{{Name: "ended", On: "btree (deleted_at, id)", Live: true}}}
}

// unfinished is the facet of the operations that need a process: the active ones, and the terminal ones
// whose notification is pending.
const unfinished = "unfinished"

// facetsOf returns the facets of an operation. An active operation that cannot be decoded has the facet, so
// that the log names it.
func facetsOf(d store.Document) []string {
	s, err := decode(d)
	if d.DeletedAt == nil || err == nil && s.hasPendingNotification() {
		return []string{unfinished}
	}
	return nil
}

// isRenewal reports whether two statuses differ only in the end of the lease, which wakes no follower
// and needs no record.
func isRenewal(before, after json.RawMessage) bool {
	var states [2]State
	for i, status := range []json.RawMessage{before, after} {
		if json.Unmarshal(status, &states[i]) != nil {
			return false
		}
		if states[i].Lease != nil {
			states[i].Lease.Until = time.Time{}
		}
	}
	return reflect.DeepEqual(states[0], states[1])
}

// Worker does the work of operations; each service has its own. It must be idempotent: after a crash it is
// called again.
type Worker interface {
	// Work takes the operation as far as it can now and returns what has happened. The engine calls it
	// again after each Wake of the resource, and after Outcome.Again. ctx ends before the lease does.
	// Several goroutines may call it, each with another operation.
	Work(ctx context.Context, s State) Outcome
}

// Outcome is the result of one call of a Worker. Event has one of the kinds Progress, Retry, Succeed and Fail.
type Outcome struct {
	Event Event
	// Again is when the engine calls Work again without a Wake; 0: after 15 s.
	Again time.Duration
	// Change changes the resource in the transaction of the event; nil: it stays as it is. The transaction is rolled
	// back when another process has the lease. The engine may call Change several times.
	Change func(ctx context.Context, tx *store.Tx) error
}

// RecordEnd changes the resource of an operation that ends, in the transaction of the end. A store error
// rolls both back.
type RecordEnd func(ctx context.Context, tx *store.Tx, s State) error

// Options are what an Engine needs.
type Options struct {
	Store     *store.Store // opened with StoreKind
	Worker    Worker
	RecordEnd RecordEnd
	Holder    string        // names this process in leases; unique among processes
	Lease     time.Duration // default 10 s
	// Retention is how long a terminal operation can be read; default 7 days.
	Retention time.Duration
	Notifier  *Notifier // nil: no notifications are sent
	// NotificationOf returns the body of a notification; needed with a Notifier.
	NotificationOf func(State) any
	// AtOnce is on how many operations the process works at once, ShareOfScope on how many of one scope.
	// The others wait in the order of their arrival; a scope with fewer running operations goes first. Default 256
	// and 64, because each running operation writes to the database every third of Lease to renew it.
	AtOnce, ShareOfScope int
	// PlaceFor is how long an operation that waits between two calls of Worker keeps its place when others need one;
	// default 15 s. Then the process works on one of them first.
	PlaceFor time.Duration

	Log *slog.Logger
	Now func() time.Time // default time.Now
}

// Engine commits, leases and runs the operations of one store. Several processes may each have an
// Engine on the same database.
type Engine struct {
	o Options

	mu         sync.Mutex
	tasks      map[string]*task // by id of the operation that each works on
	byResource map[resourceKey][]*task
	queue      *queue           // operations that wait for a task
	unreadable map[string]int64 // operations that cannot be decoded: the version that was logged, by id
	// nextRead has the unfinished operations that this process does not work on, by id, with the time at which it
	// reads them again: the end of another process's lease, or the time of the next attempt.
	nextRead map[string]time.Time
	group    sync.WaitGroup // of the tasks
	gate     *gate
}

// NewEngine returns an Engine that works on nothing until Run.
func NewEngine(o Options) *Engine {
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.Retention == 0 {
		o.Retention = 7 * 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.AtOnce == 0 {
		o.AtOnce = 256
	}
	if o.ShareOfScope == 0 {
		o.ShareOfScope = 64
	}
	if o.PlaceFor == 0 {
		o.PlaceFor = 15 * time.Second
	}
	return &Engine{o: o, tasks: map[string]*task{}, byResource: map[resourceKey][]*task{},
		queue: newQueue(o.AtOnce, o.ShareOfScope), unreadable: map[string]int64{}, nextRead: map[string]time.Time{},
		gate: newGate(o.Now())}
}

// ObserveRequest gives the engine the duration of a request of the service for a scope. While the requests of more than
// one scope are slow, the engine takes fewer steps of operations at once, because the two compete for processors and
// for the database (decision 151).
func (e *Engine) ObserveRequest(scope string, took time.Duration) {
	e.gate.observe(scope, took, e.o.Now())
}

// BusyError is the error of Begin for a resource that has an active operation.
type BusyError struct{ Active State }

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s has an active operation: %s %s", e.Active.Resource, e.Active.Request, e.Active.ID)
}

// Begin accepts an operation in the caller's transaction, which also changes the resource. The error
// is a *BusyError while the resource has an active operation. Run begins to work on the operation when
// the transaction has been committed.
func (e *Engine) Begin(ctx context.Context, tx *store.Tx, o Order) (State, error) {
	s := New(o, e.o.Now())
	d := store.Document{Kind: Kind, ID: o.ID, Scope: o.Scope, Name: o.Resource}
	if err := encode(&d, s); err != nil {
		return State{}, err
	}
	_, err := tx.Create(ctx, d)
	if exists, ok := errors.AsType[*store.ExistsError](err); ok && exists.ByName {
		busy, activeErr := e.Active(ctx, tx, o.Scope, o.Resource)
		if activeErr != nil {
			return State{}, store.ErrConflict // the other operation ended meanwhile, or its transaction is not committed yet
		}
		return State{}, &BusyError{Active: busy}
	}
	if err != nil {
		return State{}, fmt.Errorf("accepting an operation: %w", err)
	}
	return s, nil
}

// Reader reads documents by name: a Store or a Tx.
type Reader interface {
	GetByName(ctx context.Context, kind store.Kind, scope, name string) (store.Document, error)
}

// Active returns the active operation of a resource; the error is store.ErrNotFound if there is none.
func (e *Engine) Active(ctx context.Context, from Reader, scope, resource string) (State, error) {
	d, err := from.GetByName(ctx, Kind, scope, resource)
	if err != nil {
		return State{}, err
	}
	return decode(d)
}

// EachActive calls do with each active operation of a scope.
func (e *Engine) EachActive(ctx context.Context, scope string, do func(State) error) error {
	return e.eachDocument(ctx, store.Query{Kind: Kind, Scope: scope}, func(d store.Document) error {
		s, err := decode(d)
		if err != nil {
			e.logUnreadable(d, err)
			return nil
		}
		return do(s)
	})
}

// Get returns an operation. A terminal one exists for the retention.
func (e *Engine) Get(ctx context.Context, id string) (State, error) {
	d, err := e.o.Store.Get(ctx, Kind, id)
	if err != nil {
		return State{}, err
	}
	return decode(d)
}

// Supersede cancels the active operation of a resource in the caller's transaction, so that the caller
// can begin another one. It does not call RecordEnd: the caller changes the resource. The error is
// store.ErrNotFound if there is no active operation.
func (e *Engine) Supersede(ctx context.Context, tx *store.Tx, scope, resource string, why *Error) (State, error) {
	d, err := tx.GetByName(ctx, Kind, scope, resource)
	if err != nil {
		return State{}, err
	}
	return e.apply(ctx, tx, d.ID, Event{Kind: Cancel, Error: why}, nil)
}

// Cancel ends an active operation as canceled, and calls RecordEnd for its resource.
func (e *Engine) Cancel(ctx context.Context, id string, why *Error) (State, error) {
	return e.commit(ctx, id, Event{Kind: Cancel, Error: why})
}

// commit applies an event in a transaction of its own.
func (e *Engine) commit(ctx context.Context, id string, event Event) (State, error) {
	return e.commitWith(ctx, id, event, nil)
}

// commitWith changes the resource and then applies an event, in one transaction; change may be nil. It locks the
// resource before the operation, as requests do, so that the two cannot deadlock.
func (e *Engine) commitWith(ctx context.Context, id string, event Event,
	change func(context.Context, *store.Tx) error) (s State, err error) {
	err = e.o.Store.Tx(ctx, func(tx *store.Tx) error {
		if change != nil {
			if err := change(ctx, tx); err != nil {
				return err
			}
		}
		s, err = e.apply(ctx, tx, id, event, e.o.RecordEnd)
		return err
	})
	return s, err
}

// apply applies an event in a transaction. recordEnd is called when the operation ends.
func (e *Engine) apply(ctx context.Context, tx *store.Tx, id string, event Event, recordEnd RecordEnd) (State, error) {
	var after State
	var ends bool
	_, _, err := tx.Update(ctx, Kind, id, 0, func(d *store.Document) error {
		before, err := decode(*d)
		if err != nil {
			return err
		}
		now := e.o.Now()
		if after, _, err = before.Apply(event, now); err != nil {
			return err
		}
		ends = after.Status.IsTerminal() && !before.Status.IsTerminal()
		if ends {
			d.DeletedAt = &now
		}
		return encode(d, after)
	})
	if err == nil && ends && recordEnd != nil {
		err = recordEnd(ctx, tx, after)
	}
	return after, err
}

// encode writes a state into its document.
func encode(d *store.Document, s State) (err error) {
	if d.Spec == nil {
		if d.Spec, err = json.Marshal(s.Order); err != nil {
			return fmt.Errorf("encoding operation %s: %w", s.ID, err)
		}
	}
	if d.Status, err = json.Marshal(s); err != nil {
		return fmt.Errorf("encoding operation %s: %w", s.ID, err)
	}
	return nil
}

// decode reads a state from its document.
func decode(d store.Document) (s State, err error) {
	if err = json.Unmarshal(d.Status, &s); err == nil {
		err = json.Unmarshal(d.Spec, &s.Order)
	}
	if err != nil {
		return s, fmt.Errorf("reading operation %s: %w", d.ID, err)
	}
	return s, nil
}
