// Package resync compares the works and statuses that agents hold with the ledger, and has the differences sent.
//
// It answers the comparisons that agents send when they connect, and asks agents to compare when this server may have
// lost a message: after an outage of the broker or the database, after the death of another server, after statuses
// that it had no room for, after works that it sent again in vain, and after a response that replaced a stored status.
//
// Only package maestro and its packages import it.
package resync

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/fairqueue"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/records"
	"atoll.dev/store"
)

// Agents reaches the agents of consumers. dispatch.Dispatcher implements it.
type Agents interface {
	// Publish sends a message, and returns when its carrier has it. The agent may still not receive it.
	Publish(ctx context.Context, consumer work.Consumer, m bus.Event) error
	// ApplyComparison sends the works that an agent lacks.
	ApplyComparison(ctx context.Context, consumer work.Consumer, c ledger.Comparison) error
}

// Options are the parameters of New. All are needed.
type Options struct {
	Store   *store.Store
	Ledger  *ledger.Ledger
	Records *records.Writer
	Agents  Agents

	SourceID string
	Life     func() string // returns the database's life
	// Room returns how many bytes of data the broker accepts in the message m to a consumer, besides m's own bytes.
	Room func(consumer work.Consumer, m bus.Event) (int, error)
	// UnknownChanged is called when the number of unknown works may have changed.
	UnknownChanged func()

	Dropped *prometheus.CounterVec // messages that were not handled, by reason
	Took    prometheus.Histogram   // seconds of a comparison
	Logger  *slog.Logger
}

// Comparer compares agents with the ledger. It is safe for concurrent use.
type Comparer struct {
	o        Options
	log      *slog.Logger
	queue    *fairqueue.Queue[request] // comparisons of agents to answer
	requests *requestQueue             // agents to ask for a comparison
	repeated *repeatedWorks            // works to ask agents about
}

// New returns a Comparer that sends nothing until Run.
func New(o Options) *Comparer {
	return &Comparer{
		o:        o,
		log:      o.Logger,
		queue:    fairqueue.New[request](requestShares),
		requests: newRequestQueue(),
		repeated: newRepeatedWorks(),
	}
}

// Run answers and asks agents until ctx ends.
func (c *Comparer) Run(ctx context.Context) error {
	var parts errgroup.Group
	parts.Go(func() error { return c.sendRequests(ctx) })
	parts.Go(func() error { return c.runRepeated(ctx) })
	for range answerWorkers {
		parts.Go(func() error { return c.runAnswers(ctx) })
	}
	return parts.Wait()
}

// AskAll queues a request to every agent to compare its works and statuses.
func (c *Comparer) AskAll() { c.requests.add() }

// AskAgent queues such a request to one agent, after some of its statuses were dropped.
func (c *Comparer) AskAgent(consumer work.Consumer) { c.requests.add(consumer) }

// AskRepeated queues a request to one agent for the statuses of works that were sent to it again.
func (c *Comparer) AskRepeated(consumer work.Consumer, ids []work.ID) { c.repeated.add(consumer, ids) }

// AskAgain queues another request to one agent for the statuses of works, after AskPause. Its response
// to an earlier request replaced the stored statuses, and may be older than these.
func (c *Comparer) AskAgain(consumer work.Consumer, ids []work.ID) {
	c.repeated.addReplaced(consumer, ids, time.Now())
}
