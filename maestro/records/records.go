// Package records changes consumers and bundles.
//
// Each function changes a document, its ledger and its history in one transaction, and returns after the commit (I5).
// Sources call it by gRPC and operators by REST; the intake of statuses shares RaiseGeneration. Delivery follows the
// store's feed, so only changes that the feed does not have reach agents by the interface Agents.
//
// Only package maestro and its packages import it.
package records

import (
	"context"
	"log/slog"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// MaxReason is the largest length in bytes of a reason in an audit record.
const MaxReason = 1024

// Agents sends agents the orders that the change feed does not have. An order may be lost: then the agent's next
// comparison has the same effect. No function waits longer than about a second.
type Agents interface {
	// Forget drops a work from delivery whose bundle is removed.
	Forget(consumer work.Consumer, id work.ID, generation int64)
	// SendTombstone sends one order to delete a work that has a tombstone.
	SendTombstone(ctx context.Context, w delivery.Work)
	// AskDigest asks an agent to compare its works.
	AskDigest(ctx context.Context, consumer work.Consumer)
}

// Options are the parameters of New. All are needed.
type Options struct {
	Store     *store.Store
	Agents    Agents
	Accepting func() error                   // returns why the server accepts no changes now; nil: it accepts them
	CheckSize func(bundle.Spec) error        // refuses a bundle whose event is too large for the broker
	Count     func(action string, err error) // counts a change of a bundle
	// UnknownChanged is called when the number of unknown works may have changed.
	UnknownChanged func()
	Logger         *slog.Logger
}

// Writer changes consumers and bundles. It is safe for concurrent use.
type Writer struct {
	store          *store.Store
	agents         Agents
	accepting      func() error
	checkSize      func(bundle.Spec) error
	count          func(action string, err error)
	unknownChanged func()
	log            *slog.Logger
}

// New returns a Writer.
func New(o Options) *Writer {
	return &Writer{store: o.Store, agents: o.Agents, accepting: o.Accepting, checkSize: o.CheckSize, count: o.Count,
		unknownChanged: o.UnknownChanged, log: o.Logger}
}
