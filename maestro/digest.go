package maestro

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/digest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// Resync by digests, docs/decisions/021: an Atoll agent and this server compare one
// hash of all works, then hashes of buckets, and list only the works of buckets that
// differ. The server handles each message by itself and with the present ledger. So a
// lost, late, duplicate or wrong message costs a repetition, and never deletes a work
// that is not under deletion.

// answerDigest compares the agent's digest with the ledger. It answers that both are the
// same, or sends the hashes of the buckets, by which the agent finds those that differ.
func (s *Server) answerDigest(ctx context.Context, consumer string, at time.Time, theirs work.Digest) error {
	if err := s.ledger.RecordDigestUse(ctx, consumer); err != nil {
		return err
	}
	var ours []work.WorkState
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) (err error) {
		ours, err = ledger.States(ctx, c, consumer, s.life(), nil)
		return err
	})
	if err != nil {
		return err
	}
	items := digest.Works(ours)
	a := work.DigestAnswer{Same: digest.Root(items) == theirs.Root}
	switch {
	case a.Same:
	case theirs.Works == 0:
		// The agent holds no works, so its lists of all buckets are known to be empty.
		if err := s.answerWorks(ctx, consumer, at, work.BucketWorks{Buckets: []int{0}}); err != nil {
			return err
		}
	default:
		a.Bits = digest.Bits(max(len(items), theirs.Works))
		a.Buckets = digest.Buckets(items, a.Bits)
	}
	if a.Same || theirs.Works == 0 {
		if err := s.ledger.MarkCompared(ctx, consumer, s.life()); err != nil {
			return err
		}
	}
	if err := s.sendDigest(ctx, consumer, a); err != nil {
		// When the broker is back, the server asks all agents to compare.
		s.log.LogAttrs(ctx, slog.LevelDebug, "digest not answered", slog.String("consumer", consumer),
			slog.Any("error", err))
	}
	return nil
}

// sendDigest sends an agent the answer to its digest, or a request for one.
func (s *Server) sendDigest(ctx context.Context, consumer string, a work.DigestAnswer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return s.publish(ctx, consumer, bus.Event{
		DataContentType: wire.JSONType,
		ID:              uuid.NewString(),
		Source:          s.opts.SourceID,
		Type:            work.ServerDigest,
		Time:            time.Now().UTC(),
		Extensions:      map[string]string{work.ExtClusterName: consumer},
		Data:            data,
	})
}

// answerWorks compares all works that an agent holds in some buckets with the ledger, sends the
// differing works, and asks for the differing statuses.
func (s *Server) answerWorks(ctx context.Context, consumer string, at time.Time, b work.BucketWorks) error {
	scope := ledger.NewScope(b.Bits, b.Buckets)
	var versions []work.SpecVersion
	states := make([]work.WorkState, 0, len(b.Works))
	other := map[string]bool{} // works of another life of the database
	for _, w := range b.Works {
		if !scope.Has(w.ID) {
			continue // the list is complete for the scope only
		}
		versions = append(versions, work.SpecVersion{ID: w.ID, Version: w.Version})
		states = append(states, w)
		other[w.ID] = w.Life != s.life()
	}
	if err := s.reconcile(ctx, consumer, at, versions, other, scope); err != nil {
		return err
	}
	var ask []work.StatusHash
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		if err := ledger.RecordUnknownStatuses(ctx, tx, consumer, states); err != nil {
			return err
		}
		ours, err := ledger.States(ctx, tx, consumer, s.life(), scope)
		ask = differingStatuses(ours, states)
		return err
	})
	if err != nil {
		return err
	}
	if len(ask) == 0 {
		return nil
	}
	if err := s.askConsumer(ctx, consumer, idsOf(ask)); err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "statuses not asked for", slog.String("consumer", consumer),
			slog.Any("error", err))
	}
	return nil
}

func idsOf(hashes []work.StatusHash) []string {
	ids := make([]string, len(hashes))
	for i, h := range hashes {
		ids[i] = h.ID
	}
	return ids
}

// differingStatuses returns the works whose status on the agent differs from the stored
// one, with the stored hashes.
func differingStatuses(ours, theirs []work.WorkState) []work.StatusHash {
	have := make(map[string]work.WorkState, len(ours))
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
