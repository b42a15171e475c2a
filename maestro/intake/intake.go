// Package intake takes the events of agents: it queues and stores their statuses, and passes comparisons to package
// resync.
//
// An event is acknowledged to its carrier after the commit of its effect (I6), so a carrier that repeats
// unacknowledged events loses none.
//
// Only package maestro and its packages import it.
package intake

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/fairqueue"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// Delivery learns what agents reported about works. dispatch.Dispatcher implements it. No function waits for an agent.
type Delivery interface {
	// Acknowledge ends the repetitions of a work up to a generation.
	Acknowledge(consumer work.Consumer, id work.ID, generation int64)
	// Forget drops a work whose bundle is removed.
	Forget(consumer work.Consumer, id work.ID, generation int64)
	// Resend sends a work again that its agent lost.
	Resend(ctx context.Context, w delivery.Work)
}

// Resync compares agents with the ledger. resync.Comparer implements it. No function waits for an agent.
type Resync interface {
	// Enqueue queues a comparison of an agent, and calls ack once when it is finished or dropped. When the
	// message is malformed, Enqueue returns an error and does not call ack.
	Enqueue(consumer work.Consumer, m bus.Event, ack func()) error
	// AskAgent and AskAll ask one agent, and all agents, to compare.
	AskAgent(consumer work.Consumer)
	AskAll()
	// AskAgain asks an agent once more, after a pause, for the statuses of works that its response replaced.
	AskAgain(consumer work.Consumer, ids []work.ID)
}

// Options are the parameters of New. All are needed.
type Options struct {
	Store    *store.Store
	Delivery Delivery
	Resync   Resync
	SourceID string
	// RecordHosting notes the report of hosting in a heartbeat of a consumer's agent. The report is nil when the heartbeat
	// has none. The function does not wait.
	RecordHosting func(consumer work.Consumer, report *work.HostingReport)

	Dropped *prometheus.CounterVec // events that were not handled, by reason
	Batch   prometheus.Histogram   // statuses of one transaction
	Logger  *slog.Logger
}

// Intake handles the events of agents. It is safe for concurrent use.
type Intake struct {
	o     Options
	queue *fairqueue.Queue[statusItem]
}

// New returns an Intake that stores no status until Run.
func New(o Options) *Intake { return &Intake{o: o, queue: fairqueue.New[statusItem](shares)} }

// Run stores queued statuses until ctx ends.
func (in *Intake) Run(ctx context.Context) error {
	var parts errgroup.Group
	for range workers {
		parts.Go(func() error { return in.runWorker(ctx) })
	}
	return parts.Wait()
}

// Handle queues an event that is proven to come from the consumer's agent, and never waits. It
// arranges that ack is called once, when the event's effect is committed or the event
// is dropped. It returns false for an unknown type.
func (in *Intake) Handle(ctx context.Context, consumer work.Consumer, m bus.Event, ack func()) (known bool) {
	switch m.Type {
	case work.StatusUpdate, work.StatusResyncResponse:
		in.put(statusItem{consumer: consumer, m: m, ack: ack})
	case work.SpecResync, work.AgentDigest, work.AgentWorks, work.AgentSpec:
		if err := in.o.Resync.Enqueue(consumer, m, ack); err != nil {
			in.Drop(ctx, bundle.DropMalformed, consumer, m, err)
			ack()
		}
	case work.Seen:
		report, err := work.ParseSeen(m.Data)
		if err != nil {
			in.Drop(ctx, bundle.DropMalformed, consumer, m, err)
		} else {
			in.o.RecordHosting(consumer, report)
		}
		ack()
	default:
		in.Drop(ctx, "unknown_type", consumer, m, nil)
		ack()
		return false
	}
	return true
}

// Store queues a status that is proven to come from the consumer's agent, and returns when it is stored or dropped.
//
// Outcomes: nil also for a status that is older than the stored one, or about a removed work, since the agent need
// not do anything; an error of apierror with status 400 for a malformed status, and with 412 for a status of a work of
// another consumer or of another source; the error of ctx when ctx ends before.
func (in *Intake) Store(ctx context.Context, consumer work.Consumer, m bus.Event) error {
	ev, err := wire.DecodeStatus(consumer, m)
	if err != nil {
		in.Drop(ctx, bundle.DropMalformed, consumer, m, err)
		return apierror.Invalid("%s", err)
	}
	m.Data = nil
	dropped := make(chan string, 1)
	item := statusItem{consumer: consumer, m: m, ev: ev, ack: func() { dropped <- "" },
		refused: func(reason string) { dropped <- reason }}
	if err := in.putWait(ctx, item); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case reason := <-dropped:
		return dropError(reason, consumer, ev.Record)
	}
}

// dropError returns the error for a status that was dropped for the reason, or nil when the agent need not know it.
func dropError(reason string, consumer work.Consumer, status bundle.Status) error {
	switch reason {
	case bundle.DropMalformed:
		return apierror.Invalid("the status cannot be stored")
	case bundle.DropConsumer:
		return rest.Errorf(http.StatusPreconditionFailed, apierror.CodeForbidden, "bundle %s is not on cluster %s",
			status.ID, consumer)
	case bundle.DropSource:
		return rest.Errorf(http.StatusPreconditionFailed, apierror.CodeForbidden, "bundle %s has another source than %q",
			status.ID, status.OriginalSource)
	}
	return nil
}

// Drop counts and logs an event that the server does not handle.
func (in *Intake) Drop(ctx context.Context, reason string, consumer work.Consumer, m bus.Event, err error) {
	in.o.Dropped.WithLabelValues(reason).Inc()
	in.o.Logger.LogAttrs(ctx, slog.LevelWarn, "event dropped", slog.String("reason", reason),
		slog.String("consumer", string(consumer)),
		slog.String("type", strings.ToValidUTF8(m.Type[:min(len(m.Type), 128)], "")), slog.Any("error", err))
}
