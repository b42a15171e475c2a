package adapter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"atoll.dev/bus"
	"atoll.dev/internal/trace"
)

// Runner runs a task for an event; *Engine is one.
type Runner interface {
	Run(ctx context.Context, e Event) *Result
}

// WorkerOptions configure a Worker.
type WorkerOptions struct {
	Name         string // the adapter's
	Subscription string // default: the name
	Topic        string // of the events, such as "clusters"

	Engine  Runner
	Watcher Watcher           // reports changes of the adapter's objects; may be nil
	Bus     bus.ClientOptions // the worker sets Subscriptions, Handler and OnConnected

	Parallel int           // resources at once; default 16
	Grace    time.Duration // for runs in progress when the worker stops; default 10 s
	// Sharer assigns each resource to one of the adapter's replicas. Without it the broker
	// distributes the events, and two replicas may work on one resource at the same time.
	Sharer Sharer
	Lease  time.Duration // of a replica; default 4 s. Other replicas take over the slots of a killed one after it

	Limit time.Duration // for one run; default 5 min. A run that exceeds it fails and is retried

	Log     *slog.Logger
	Metrics *Metrics
	Tracer  *trace.Tracer // nil: off
}

func (o WorkerOptions) withDefaults() WorkerOptions {
	o.Subscription = cmp.Or(o.Subscription, o.Name)
	o.Parallel = cmp.Or(o.Parallel, 16)
	o.Grace = cmp.Or(o.Grace, 10*time.Second)
	o.Limit = cmp.Or(o.Limit, 5*time.Minute)
	o.Lease = cmp.Or(o.Lease, 4*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(prometheus.NewRegistry(), o.Name, "")
	}
	return o
}

// Worker runs an adapter's task for each resource that an event or a change of an object names. It
// acknowledges an event when it has queued it: events are hints, and the sentinel sends them again
// for resources that stay unreconciled. Use NewWorker, then Run.
type Worker struct {
	o         WorkerOptions
	bus       atomic.Pointer[bus.Client] // nil until the worker knows how events are distributed
	pool      *pool
	share     share
	sendHello func(context.Context, bus.Hello) // publishes bus.Hello

	more     chan struct{} // has a token when toResync is not empty
	mu       sync.Mutex
	toResync map[int]bool    // newly acquired slots that resyncSlots has not handled yet
	deferred map[string]hint // by resource: events that came while the lease had expired
}

// NewWorker returns a worker that is idle until Run.
func NewWorker(o WorkerOptions) *Worker {
	w := &Worker{o: o.withDefaults(), more: make(chan struct{}, 1), toResync: map[int]bool{},
		deferred: map[string]hint{}}
	w.share.lease, w.sendHello = w.o.Lease, w.publishHello
	w.pool = newPool(w.o.Parallel, w.o.Grace, w.run)
	return w
}

// client makes the worker's bus client. A worker whose resources CLM assigns subscribes to all
// events and drops those of other replicas; otherwise the broker distributes the events among the
// replicas.
func (w *Worker) client(subscription string) *bus.Client {
	b := w.o.Bus
	b.ClientID = cmp.Or(b.ClientID, "adapter-"+w.o.Name+"-"+uuid.NewString()[:8])
	b.Subscriptions = []string{subscription}
	b.Handler, b.OnConnected = w.take, w.requestUnreconciled
	b.Logger = w.o.Log
	return bus.NewClient(b)
}

// Ready returns nil when the worker receives events.
func (w *Worker) Ready(ctx context.Context) error {
	client := w.bus.Load()
	if client == nil {
		return errors.New("the lifecycle manager has not assigned resources to this replica yet")
	}
	return client.Check(ctx)
}

// Run receives events and runs tasks until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	w.o.Metrics.up.Set(1)
	defer w.o.Metrics.up.Set(0)
	sharing := false
	if w.o.Sharer != nil {
		var err error
		if sharing, err = w.firstShare(ctx); err != nil {
			return nil // ctx has ended
		}
		w.takeSlotsToResync() // the first watch and the first hello cover the first slots
	}
	subscription := bus.EventFilter(w.o.Subscription, w.o.Topic)
	if sharing {
		subscription = bus.EventTopic(w.o.Topic)
	}
	client := w.client(subscription)
	w.bus.Store(client)
	// The worker renews the lease until its last run has ended.
	keeping, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var keeper sync.WaitGroup
	if sharing {
		keeper.Go(func() { w.keepShare(keeping) })
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { w.pool.Run(ctx); return nil })
	group.Go(func() error { return client.Run(ctx) })
	group.Go(func() error { w.resyncSlots(ctx); return nil })
	if w.o.Watcher != nil {
		group.Go(func() error { w.watch(ctx); return nil })
	}
	err := group.Wait()
	release()
	keeper.Wait()
	if sharing {
		w.leave(ctx)
	}
	return err
}

// queueResync notes newly acquired slots for resyncSlots.
func (w *Worker) queueResync(slots []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, slot := range slots {
		w.toResync[slot] = true
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *Worker) takeSlotsToResync() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	slots := slices.Sorted(maps.Keys(w.toResync))
	clear(w.toResync)
	return slots
}

// resyncSlots queues every resource in newly acquired slots: it asks the sentinel for the
// unreconciled ones, and the watcher for all whose objects it knows. This replica dropped their
// earlier events, because they were another replica's.
func (w *Worker) resyncSlots(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.more:
		}
		slots, of := w.takeSlotsToResync(), w.share.slotCount()
		if len(slots) == 0 {
			continue
		}
		in := bus.Hello{Of: of, Slots: slots}
		w.sendHello(ctx, in)
		if w.o.Watcher != nil {
			w.o.Watcher.Recall(func(e Event) bool { return in.Wants(e.ID) })
		}
	}
}

// watchAgain is the pause before a watch that ended begins again. Watchers reconnect broken streams
// by themselves, so an end is an error of another kind and is logged.
const watchAgain = 5 * time.Second

// watch queues the resources whose objects change, until ctx ends.
func (w *Worker) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.o.Watcher.Watch(ctx, func(e Event) bool {
			return w.enqueue(hint{task: task{Event: e}, watched: true})
		})
		if ctx.Err() != nil {
			return
		}
		w.o.Log.Error("the watch of the adapter's objects ended; it is begun again", "error", err)
		w.o.Metrics.countError("watch")
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// take queues an event of the bus. It acknowledges malformed events, too: a redelivery would be the
// same.
func (w *Worker) take(_ context.Context, m bus.Message) {
	defer m.Ack()
	var e Event
	if err := json.Unmarshal(m.Event.Data, &e); err != nil || e.ID == "" {
		w.o.Log.Warn("an event without a resource was dropped", "topic", m.Topic, "type", m.Event.Type, "id",
			m.Event.ID, "error", err)
		w.o.Metrics.countError("event")
		return
	}
	w.enqueue(hint{task: task{Event: e, trace: m.Event.Extensions["traceparent"]}})
}

// enqueue queues an event whose resource is this replica's, and reports whether it is. While the
// lease has expired it keeps the event for the renewal.
func (w *Worker) enqueue(e hint) (taken bool) {
	switch w.share.holds(e.ID, time.Now()) {
	case heldHere:
		w.pool.enqueue(e)
	case suspended:
		w.deferHint(e)
	default:
		return false
	}
	return true
}

// deferHint keeps an event until requeueDeferred: for each resource of this replica's slots the
// event of the newest generation.
func (w *Worker) deferHint(e hint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was, ok := w.deferred[e.ID]; ok {
		e.watched = e.watched && was.watched
		if was.Generation > e.Generation {
			e.task = was.task
		}
	}
	w.deferred[e.ID] = e
}

// requeueDeferred queues the deferred events of resources that are this replica's again, and drops
// the others.
func (w *Worker) requeueDeferred() {
	w.mu.Lock()
	deferred := w.deferred
	w.deferred = map[string]hint{}
	w.mu.Unlock()
	for _, e := range deferred {
		w.enqueue(e)
	}
}

// requestUnreconciled asks the sentinel for events of this replica's unreconciled resources: events
// that were published while the worker was not connected are lost.
func (w *Worker) requestUnreconciled(ctx context.Context) {
	slots, of := w.share.slotsOfReplica()
	w.sendHello(ctx, bus.Hello{Of: of, Slots: slots})
}

// publishHello sends a hello to the sentinels. A failure is logged: the sentinel sends again later.
func (w *Worker) publishHello(ctx context.Context, h bus.Hello) {
	h.Adapter, h.Topic = w.o.Name, w.o.Topic
	data, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and numbers only
	}
	client := w.bus.Load()
	err = client.Publish(ctx, bus.HelloTopic(w.o.Topic), bus.Event{
		ID:              uuid.NewString(),
		Source:          w.o.Name,
		Type:            bus.HelloType,
		Time:            time.Now(),
		DataContentType: "application/json",
		Data:            data,
	})
	if err != nil && ctx.Err() == nil {
		w.o.Log.Warn("the hello to the sentinel was not published; unreconciled resources wait for its next event",
			"error", err)
	}
}

// run runs the task for one resource.
func (w *Worker) run(ctx context.Context, t task) ending {
	begun := time.Now()
	ctx, end, mine := w.share.begin(ctx, t.ID, begun)
	defer end()
	if !mine {
		// The resource was this replica's when it was queued, and may be again after the renewal.
		w.enqueue(hint{task: t})
		return notBegun
	}
	ctx, span := w.o.Tracer.Start(trace.WithParent(ctx, t.trace), "reconcile "+t.Kind, trace.Consumer,
		trace.String("adapter", w.o.Name), trace.String("resource.id", t.ID), trace.Int("resource.generation",
			t.Generation))
	result, err := w.execute(ctx, t.Event)
	span.End(err)
	took := time.Since(begun)
	status := Success
	switch {
	case err != nil:
		status = Failed
	case result.Skipped || result.Gone:
		status = Skip
	}
	w.o.Metrics.countRun(status, took)
	attrs := []slog.Attr{
		slog.String("kind", t.Kind), slog.String("id", t.ID), slog.Int64("generation", t.Generation),
		slog.String("status", string(status)), slog.Duration("waited", begun.Sub(t.since)), slog.Duration("took", took),
	}
	switch {
	case err != nil:
		w.o.Metrics.countError(string(phaseOf(result)))
		w.o.Log.LogAttrs(ctx, slog.LevelWarn, "a run failed", append(attrs, slog.Any("error", err))...)
	case result.Skipped:
		w.o.Log.LogAttrs(ctx, slog.LevelDebug, "a run ended",
			append(attrs, slog.String("reason", result.SkipReason))...)
	default:
		w.o.Log.LogAttrs(ctx, slog.LevelDebug, "a run ended", attrs...)
	}
	wrote := result != nil && result.wrote() // after a panic there is no result
	switch {
	case err != nil && wrote:
		return failedAfterWrite
	case err != nil:
		return failed
	case wrote:
		return repaired
	}
	return succeeded
}

// execute calls the engine. A panic fails the run of this one resource.
func (w *Worker) execute(ctx context.Context, e Event) (result *Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the engine panicked: %v", p)
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, w.o.Limit, fmt.Errorf("the run takes longer than %s", w.o.Limit))
	defer cancel()
	result = w.o.Engine.Run(ctx, e)
	if result == nil {
		return nil, errors.New("the engine has no result")
	}
	return result, result.Err()
}

// phaseOf returns the first phase that failed, for metrics.
func phaseOf(r *Result) Phase {
	if r != nil {
		for _, p := range []Phase{ParamExtraction, Preconditions, Resources, PostActions} {
			if r.Errors[p] != nil {
				return p
			}
		}
	}
	return "panic"
}
