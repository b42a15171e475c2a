// Package loop is the controller loop of hosting: it watches one resource of a
// cluster and calls a function for each object, until the function returns that
// nothing is left to do. It has a watch, a queue that holds each object once,
// workers, and an exponential back-off after errors.
//
// Reconciling is level-triggered: the function gets the latest object that the
// watch has brought, any number of times, and never in two calls at once.
package loop

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"
)

// Key names an object.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Options describe a loop.
type Options struct {
	Client    dynamic.Interface
	Resource  schema.GroupVersionResource
	Namespace string // default: all
	Bound     *Bound // default: all objects are trusted and kept whole

	// Reconcile brings the world nearer to an object's spec. The object is the
	// callee's own copy, without managed fields; nil when it does not exist. It is
	// called again after a change of the object, after Trigger, after the returned
	// time when that is not 0, after a growing back-off when it returns an error,
	// and every Resync.
	Reconcile func(ctx context.Context, key Key, object *unstructured.Unstructured) (again time.Duration, err error)

	// Owner and Share keep the slow calls of some owners from delaying all others: of
	// the objects of one owner at most Share are reconciled at once, and a call that
	// takes longer than slowAfter no longer counts as one of Workers. Default: objects
	// have no owners, and at most Workers calls run at once.
	Owner func(object *unstructured.Unstructured) string
	Share int
	Limit time.Duration // of a call: its context ends then; default: none

	Workers    int           // calls at once, slow calls with an owner not counted; default 4
	MinBackoff time.Duration // after the first error; default 20 ms
	MaxBackoff time.Duration // default 15 s
	Resync     time.Duration // between two calls for an object that nothing else triggers; default 5 min

	Log *slog.Logger // default: none
	// Observe is called after each call of Reconcile, with its duration and error.
	Observe func(key Key, took time.Duration, err error)
}

func (o Options) withDefaults() Options {
	if o.Workers == 0 {
		o.Workers = 4
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = 20 * time.Millisecond
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = 15 * time.Second
	}
	if o.Resync == 0 {
		o.Resync = 5 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(Key, time.Duration, error) {}
	}
	return o
}

// slowAfter is how long a call for an object with an owner counts as one of the
// workers. Then another worker starts in its place: calls in progress are bounded by
// Workers and, for each owner, by Share. A healthy control plane answers a whole call
// well within this time; an unhealthy one can keep a call until Limit.
const slowAfter = time.Second

// Loop is one resource's watch and queue. Its methods may be called by many
// goroutines, before Run, too.
type Loop struct {
	o     Options
	queue workqueue.TypedRateLimitingInterface[Key]
	work  sync.WaitGroup // everything that Run has started

	mu      sync.Mutex
	objects map[Key]*unstructured.Unstructured // never changed once in here
	calls   map[string]int                     // calls in progress, by owner
	parked  map[string]map[Key]struct{}        // wait for the end of one of their owner's
	synced  chan struct{}                      // closed after the first listing

	overflow overflow      // of a bounded loop
	room     chan struct{} // holds one when a bounded loop that has dropped objects has room
}

// New makes a loop that does nothing before Run.
func New(o Options) *Loop {
	o = o.withDefaults()
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[Key](o.MinBackoff, o.MaxBackoff)
	return &Loop{
		o: o, queue: workqueue.NewTypedRateLimitingQueue(limiter),
		objects: map[Key]*unstructured.Unstructured{}, synced: make(chan struct{}),
		calls: map[string]int{}, parked: map[string]map[Key]struct{}{}, room: make(chan struct{}, 1),
	}
}

// Run runs a loop that needs no Trigger; see Loop.Run.
func Run(ctx context.Context, o Options) error { return New(o).Run(ctx) }

// Run watches and reconciles until ctx ends; then it waits for the calls in
// progress and returns nil. It is called once.
func (l *Loop) Run(ctx context.Context) error {
	for range l.o.Workers {
		l.startWorker(ctx)
	}
	l.work.Go(func() { l.watch(ctx) })
	l.work.Go(func() { l.resync(ctx) })
	<-ctx.Done()
	l.queue.ShutDown()
	l.work.Wait()
	return nil
}

// startWorker starts a goroutine that takes keys from the queue until the queue is
// shut down or another worker has taken its place.
func (l *Loop) startWorker(ctx context.Context) {
	l.work.Go(func() {
		for l.next(ctx) {
		}
	})
}

// Trigger queues a call for an object, whether or not it exists.
func (l *Loop) Trigger(key Key) { l.queue.Add(key) }

// Synced is closed when the objects that exist have been listed once.
func (l *Loop) Synced() <-chan struct{} { return l.synced }

// Ready returns nil once Synced is closed.
func (l *Loop) Ready(context.Context) error {
	select {
	case <-l.synced:
		return nil
	default:
		return fmt.Errorf("%s have not been listed yet", l.o.Resource.Resource)
	}
}

// Get returns a copy of an object as the watch knows it, nil when there is
// none.
func (l *Loop) Get(key Key) *unstructured.Unstructured {
	l.mu.Lock()
	object := l.objects[key]
	l.mu.Unlock()
	if object == nil {
		return nil
	}
	return object.DeepCopy()
}

// Keys names the objects that the watch knows.
func (l *Loop) Keys() []Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := make([]Key, 0, len(l.objects))
	for k := range l.objects {
		keys = append(keys, k)
	}
	return keys
}

// next takes one key from the queue and calls Reconcile. It returns false when the
// worker must end: the queue is shut down, or the call was slow and another worker
// has taken this one's place.
func (l *Loop) next(ctx context.Context) (goOn bool) {
	key, down := l.queue.Get()
	if down {
		return false
	}
	defer l.queue.Done(key)
	if ctx.Err() != nil {
		return true // drops the queue
	}
	object := l.Get(key)
	leave, ok := l.enter(key, object)
	if !ok {
		return true
	}
	defer leave()
	if l.o.Owner != nil && object != nil {
		finish := l.replaceWhenSlow(ctx)
		defer func() { goOn = !finish() }()
	}
	start := time.Now()
	again, err := l.call(ctx, key, object)
	l.o.Observe(key, time.Since(start), err)
	switch {
	case err != nil && ctx.Err() != nil: // the loop stops
	case err != nil:
		l.o.Log.Warn("reconciling failed and is retried", "resource", l.o.Resource.Resource, "object", key.String(),
			"error", err)
		l.queue.AddRateLimited(key)
	default:
		l.queue.Forget(key)
		if again > 0 {
			l.queue.AddAfter(key, again)
		}
	}
	return true
}

// replaceWhenSlow starts another worker if finish is not called within slowAfter.
// finish reports whether that has happened.
func (l *Loop) replaceWhenSlow(ctx context.Context) (finish func() (replaced bool)) {
	started := make(chan struct{})
	timer := time.AfterFunc(slowAfter, func() {
		l.startWorker(ctx)
		close(started)
	})
	return func() bool {
		if timer.Stop() {
			return false
		}
		<-started
		return true
	}
}

func (l *Loop) call(ctx context.Context, key Key, object *unstructured.Unstructured) (time.Duration, error) {
	if l.o.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.o.Limit)
		defer cancel()
	}
	return l.o.Reconcile(ctx, key, object)
}

// enter takes one of the owner's places. When there is none, the key is parked
// until leave is called for another.
func (l *Loop) enter(key Key, object *unstructured.Unstructured) (leave func(), ok bool) {
	if l.o.Owner == nil || object == nil {
		return func() {}, true
	}
	owner := l.o.Owner(object)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls[owner] >= l.o.Share {
		if l.parked[owner] == nil {
			l.parked[owner] = map[Key]struct{}{}
		}
		l.parked[owner][key] = struct{}{}
		return nil, false
	}
	l.calls[owner]++
	return func() { l.leave(owner) }, true
}

// leave frees a place and queues all parked keys of the owner: a key that is taken
// next may belong to a deleted object and use no place.
func (l *Loop) leave(owner string) {
	l.mu.Lock()
	if l.calls[owner]--; l.calls[owner] == 0 {
		delete(l.calls, owner)
	}
	parked := l.parked[owner]
	delete(l.parked, owner)
	l.mu.Unlock()
	for key := range parked {
		l.queue.Add(key)
	}
}

// resync queues every object at intervals.
func (l *Loop) resync(ctx context.Context) {
	t := time.NewTicker(l.o.Resync)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			for _, k := range l.Keys() {
				l.queue.Add(k)
			}
		}
	}
}

// Decode reads an object into its Go type. It drops fields that the type does not
// have, so a caller must never write a decoded object back.
func Decode[T any](object *unstructured.Unstructured) (*T, error) {
	var t T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &t); err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
	}
	return &t, nil
}
