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

// WorkerOptions say for whom a worker works, and what wakes it.
type WorkerOptions struct {
	Name         string // the adapter's
	Subscription string // default: the name
	Topic        string // of the events, such as "clusters"

	Engine  Runner
	Watcher Watcher           // tells when an object of the adapter changes; may be nil
	Bus     bus.ClientOptions // whose Subscriptions, Handler and OnConnected are the worker's own

	Parallel int           // resources at once; default 16
	Grace    time.Duration // for runs under way when it stops; default 10 s
	// Sharer gives each resource to one of the adapter's replicas; nil: the broker
	// shares the events, and two replicas may work on one resource at once.
	Sharer Sharer
	Lease  time.Duration // of a replica; default 4 s. What was a killed one's is others' after it

	Limit time.Duration // for one run; default 5 min. What hangs then fails, and is tried again

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

// Worker has an adapter's task run for each resource that an event or a change
// of an object names. Events are acknowledged when they are queued: they are
// hints, and the sentinel sends again what stays unreconciled. Use NewWorker,
// then Run.
type Worker struct {
	o     WorkerOptions
	bus   atomic.Pointer[bus.Client] // nil until it is known how events are shared
	pool  *pool
	share share
	greet func(context.Context, bus.Hello) // says hello to the sentinel

	more   chan struct{} // has a token when gained is not empty
	mu     sync.Mutex
	gained map[int]bool    // slots that are this replica's and are to be looked after from the beginning
	parked map[string]told // by resource: what came, or was to run, while the lease was over
}

// NewWorker returns a worker that does nothing until Run.
func NewWorker(o WorkerOptions) *Worker {
	w := &Worker{o: o.withDefaults(), more: make(chan struct{}, 1), gained: map[int]bool{}, parked: map[string]told{}}
	w.share.lease, w.greet = w.o.Lease, w.sayHello
	w.pool = newPool(w.o.Parallel, w.o.Grace, w.run)
	return w
}

// client is the worker's part on the bus. Who has its own resources by a Sharer
// hears all events; the others share them by the broker.
func (w *Worker) client(sharing bool) *bus.Client {
	b := w.o.Bus
	b.ClientID = cmp.Or(b.ClientID, "adapter-"+w.o.Name+"-"+uuid.NewString()[:8])
	b.Subscriptions = []string{bus.EventFilter(w.o.Subscription, w.o.Topic)}
	if sharing {
		b.Subscriptions = []string{bus.EventTopic(w.o.Topic)}
	}
	b.Handler, b.OnConnected = w.take, w.hello
	b.Logger = w.o.Log
	return bus.NewClient(b)
}

// Ready is nil when events can come.
func (w *Worker) Ready(ctx context.Context) error {
	client := w.bus.Load()
	if client == nil {
		return errors.New("the lifecycle manager has not said yet which resources are this replica's")
	}
	return client.Check(ctx)
}

// Run works until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	w.o.Metrics.up.Set(1)
	defer w.o.Metrics.up.Set(0)
	sharing := false
	if w.o.Sharer != nil {
		var err error
		if sharing, err = w.firstShare(ctx); err != nil {
			return nil // ctx has ended
		}
		w.takeGained() // the first watch and hello look after the first slots
	}
	client := w.client(sharing)
	w.bus.Store(client)
	// The lease is kept until the last run has ended, and no longer.
	keeping, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var keeper sync.WaitGroup
	if sharing {
		keeper.Go(func() { w.keepShare(keeping) })
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { w.pool.Run(ctx); return nil })
	group.Go(func() error { return client.Run(ctx) })
	group.Go(func() error { w.tend(ctx); return nil })
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

// gain has slots looked after from the beginning, by tend.
func (w *Worker) gain(slots []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, slot := range slots {
		w.gained[slot] = true
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *Worker) takeGained() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	slots := slices.Sorted(maps.Keys(w.gained))
	clear(w.gained)
	return slots
}

// tend has the resources of slots looked after that were another replica's: the
// sentinel is asked for what is unreconciled, and the watch for what it knows. What
// it told of them before was dropped.
func (w *Worker) tend(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.more:
		}
		slots, of := w.takeGained(), w.share.count()
		if len(slots) == 0 {
			continue
		}
		in := bus.Hello{Of: of, Slots: slots}
		w.greet(ctx, in)
		if w.o.Watcher != nil {
			w.o.Watcher.Recall(func(e Event) bool { return in.Wants(e.ID) })
		}
	}
}

// watchAgain is how long after its end a watch is begun again. Watchers mend
// broken streams themselves; what ends them is worth a line in the log.
const watchAgain = 5 * time.Second

func (w *Worker) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.o.Watcher.Watch(ctx, func(e Event) bool { return w.tell(told{task: task{Event: e}, watched: true}) })
		if ctx.Err() != nil {
			return
		}
		w.o.Log.Error("the watch of the adapter's objects ended; it is begun again", "error", err)
		w.o.Metrics.failed("watch")
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// take queues an event. One that cannot be read would be no better the next
// time, so it is acknowledged, too.
func (w *Worker) take(_ context.Context, m bus.Message) {
	defer m.Ack()
	var e Event
	if err := json.Unmarshal(m.Event.Data, &e); err != nil || e.ID == "" {
		w.o.Log.Warn("an event without a resource was dropped", "topic", m.Topic, "type", m.Event.Type, "id",
			m.Event.ID, "error", err)
		w.o.Metrics.failed("event")
		return
	}
	w.tell(told{task: task{Event: e, trace: m.Event.Extensions["traceparent"]}})
}

// tell queues an event of a resource that is this replica's, and says whether it
// is. While the lease is over the event is kept for when it is not.
func (w *Worker) tell(e told) (taken bool) {
	switch w.share.holds(e.ID, time.Now()) {
	case owned:
		w.pool.tell(e)
	case suspended:
		w.park(e)
	default:
		return false
	}
	return true
}

// park keeps an event until unpark. There is at most one for each resource of this
// replica's slots, of the newest generation.
func (w *Worker) park(e told) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was, ok := w.parked[e.ID]; ok {
		e.watched = e.watched && was.watched
		if was.Generation > e.Generation {
			e.task = was.task
		}
	}
	w.parked[e.ID] = e
}

// unpark queues what was parked and is this replica's again, and drops what is
// another's.
func (w *Worker) unpark() {
	w.mu.Lock()
	parked := w.parked
	w.parked = map[string]told{}
	w.mu.Unlock()
	for _, e := range parked {
		w.tell(e)
	}
}

// hello asks the sentinel for what is unreconciled of this replica's resources:
// events that came while there was no connection are gone.
func (w *Worker) hello(ctx context.Context) {
	slots, of := w.share.held()
	w.greet(ctx, bus.Hello{Of: of, Slots: slots})
}

func (w *Worker) sayHello(ctx context.Context, h bus.Hello) {
	h.Adapter, h.Topic = w.o.Name, w.o.Topic
	data, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and numbers only
	}
	client := w.bus.Load()
	err = client.Publish(ctx, bus.HelloTopic(w.o.Topic), bus.Event{
		ID: uuid.NewString(), Source: w.o.Name, Type: bus.HelloType, Time: time.Now(), DataContentType: "application/json", Data: data,
	})
	if err != nil && ctx.Err() == nil {
		w.o.Log.Warn("the sentinel could not be greeted; what is unreconciled comes when it sends again", "error", err)
	}
}

// run runs the task for one resource.
func (w *Worker) run(ctx context.Context, t task) ending {
	begun := time.Now()
	ctx, end, mine := w.share.begin(ctx, t.ID, begun)
	defer end()
	if !mine {
		// It was this replica's when it was queued. It may be again, or its owner runs it.
		w.tell(told{task: t})
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
	w.o.Metrics.processed(status, took)
	attrs := []slog.Attr{
		slog.String("kind", t.Kind), slog.String("id", t.ID), slog.Int64("generation", t.Generation),
		slog.String("status", string(status)), slog.Duration("waited", begun.Sub(t.since)), slog.Duration("took", took),
	}
	switch {
	case err != nil:
		w.o.Metrics.failed(string(phaseOf(result)))
		w.o.Log.LogAttrs(ctx, slog.LevelWarn, "a run failed", append(attrs, slog.Any("error", err))...)
	case result.Skipped:
		w.o.Log.LogAttrs(ctx, slog.LevelDebug, "a run ended",
			append(attrs, slog.String("reason", result.SkipReason))...)
	default:
		w.o.Log.LogAttrs(ctx, slog.LevelDebug, "a run ended", attrs...)
	}
	if err != nil {
		return failed
	}
	return succeeded
}

// execute is the engine's Run, whose panic is one resource's failure.
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

// phaseOf is the first phase that failed.
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
