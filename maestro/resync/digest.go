package resync

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// Resync by digests, docs/decisions/021: an Atoll agent and this server compare one
// hash of all works, then hashes of buckets, and list only the works of buckets that
// differ. The server handles each message by itself and with the present ledger. So a
// lost, late, duplicate or wrong message costs a repetition, and never deletes a work
// that is not under deletion.

// answerDigest compares the agent's digest with the ledger. It answers that both are
// equal, or it sends the hashes of all buckets, by which the agent finds the different ones.
func (c *Comparer) answerDigest(ctx context.Context, consumer work.Consumer, at time.Time, theirs work.Digest) error {
	var ours []work.WorkState
	err := c.o.Store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		ours, err = ledger.States(ctx, conn, consumer, c.o.Life(), nil)
		return err
	})
	if err != nil {
		return err
	}
	items := digest.ItemsOf(ours)
	a := work.DigestAnswer{Same: digest.Root(items) == theirs.Root}
	switch {
	case a.Same:
	case theirs.Works == 0:
		// The agent holds no works, so its lists of all buckets are known to be empty.
		if err := c.answerWorks(ctx, consumer, at, work.BucketWorks{Buckets: []int{0}}); err != nil {
			return err
		}
	default:
		a.Bits = digest.Bits(max(len(items), theirs.Works))
		a.Buckets = digest.Buckets(items, a.Bits)
	}
	if a.Same || theirs.Works == 0 {
		err = c.o.Ledger.RecordAgreement(ctx, consumer, c.o.Life())
	} else {
		err = c.o.Ledger.RecordDigestUse(ctx, consumer)
	}
	if err != nil {
		return err
	}
	if err := c.SendDigest(ctx, consumer, a); err != nil {
		// When the broker is back, the server asks all agents to compare.
		c.log.LogAttrs(ctx, slog.LevelDebug, "digest not answered", slog.String("consumer", string(consumer)),
			slog.Any("error", err))
	}
	return nil
}

// SendDigest sends an agent the answer to its digest, or a request for one. It returns when the carrier has the message.
func (c *Comparer) SendDigest(ctx context.Context, consumer work.Consumer, a work.DigestAnswer) error {
	m, err := c.event(consumer, work.ServerDigest, a)
	if err != nil {
		return err
	}
	return c.o.Agents.Publish(ctx, consumer, m)
}

// answerWorks compares all works that an agent holds in some buckets with the ledger, sends the
// differing works, and asks for the differing statuses.
func (c *Comparer) answerWorks(ctx context.Context, consumer work.Consumer, at time.Time, b work.BucketWorks) error {
	scope := ledger.NewScope(b.Bits, b.Buckets)
	var versions []work.SpecVersion
	states := make([]work.WorkState, 0, len(b.Works))
	other := map[work.ID]bool{} // works of another life of the database
	for _, w := range b.Works {
		if !scope.Has(w.ID) {
			continue // the list is complete for the scope only
		}
		versions = append(versions, work.SpecVersion{ID: w.ID, Version: w.Version})
		states = append(states, w)
		other[w.ID] = w.Life != c.o.Life()
	}
	found, err := c.reconcile(ctx, consumer, at, versions, other, scope)
	if err != nil {
		return err
	}
	if len(found.Unknown) > 0 {
		err := c.o.Store.Tx(ctx, func(tx *store.Tx) error {
			return ledger.RecordUnknownStatuses(ctx, tx, consumer, states)
		})
		if err != nil {
			return err
		}
	}
	var ask []work.StatusHash
	err = c.o.Store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		ours, err := ledger.States(ctx, conn, consumer, c.o.Life(), scope)
		ask = differingStatuses(ours, states)
		return err
	})
	if err != nil {
		return err
	}
	if len(ask) == 0 {
		return nil
	}
	if err := c.askConsumer(ctx, consumer, idsOf(ask)); err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "statuses not asked for", slog.String("consumer", string(consumer)),
			slog.Any("error", err))
	}
	return nil
}

func idsOf(hashes []work.StatusHash) []work.ID {
	ids := make([]work.ID, len(hashes))
	for i, h := range hashes {
		ids[i] = h.ID
	}
	return ids
}

// differingStatuses returns the works whose status on the agent differs from the stored
// one, with the stored hashes.
func differingStatuses(ours, theirs []work.WorkState) []work.StatusHash {
	have := make(map[work.ID]work.WorkState, len(ours))
	for _, w := range ours {
		have[w.ID] = w
	}
	var differ []work.StatusHash
	for _, w := range theirs {
		if o, known := have[w.ID]; known && !o.Deleting && !w.Deleting && w.Status != "" && w.Status != o.Status {
			differ = append(differ, work.StatusHash{ID: w.ID, Hash: o.Status})
		}
	}
	return differ
}

// checkBuckets refuses a list of works with impossible buckets or ids.
func checkBuckets(b work.BucketWorks) error {
	if b.Bits < 0 || b.Bits > digest.MaxBits || len(b.Buckets) > 1<<b.Bits {
		return digest.ErrForm
	}
	for _, w := range b.Works {
		if err := bundle.CheckID(w.ID); err != nil {
			return err
		}
	}
	return nil
}
