package maestro

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/digest"
	"atoll.dev/store"
)

// Resync by digests, docs/decisions/021: an agent of ours and this server
// compare one hash of all that they hold, then hashes of buckets, and list
// only what is in buckets that differ. Each message is judged by itself and by
// the ledger as it is, so one that is lost, late, doubled or wrong costs a
// repetition and nothing else; in particular nothing is deleted because of it
// that is not under deletion anyway.

// rowReader is a connection, or a transaction.
type rowReader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ourWorks reads what a consumer's agent should hold, and what is known that
// it holds besides, as both compare it.
//
// With a scope it reads the works of these buckets only, by an index: an agent
// with many works lists them in many messages, and each is compared by itself.
func ourWorks(ctx context.Context, db rowReader, consumer, life string, scope *bucketScope) ([]work.WorkState, error) {
	rows, err := db.Query(
		ctx, `select id, wanted, deleting, status_hash, $2::text from ledger where consumer = $1 and gone_at is null`+
			scope.sql(3)+`
		union all select id, generation, false, status_hash, life from unknown_work where consumer = $1`+scope.sql(3), append([]any{consumer, life}, scope.args()...)...)
	if err != nil {
		return nil, err
	}
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w work.WorkState, err error) {
		err = row.Scan(&w.ID, &w.Version, &w.Deleting, &w.Status, &w.Life)
		return seen(w), err
	})
	if err != nil {
		return nil, fmt.Errorf("reading what %s is to hold: %w", consumer, err)
	}
	return states, nil
}

// seen is a work as it is compared: what is to go has no status, and one that
// never had a status has none either.
func seen(w work.WorkState) work.WorkState {
	w.Status = digest.Status(w.Status)
	if w.Deleting || w.Status == digest.Status(emptyHash) {
		w.Status = ""
	}
	return w
}

// answerDigest says whether the agent holds what it should, or by which
// buckets to find out what it does not.
func (s *Server) answerDigest(ctx context.Context, consumer string, at time.Time, theirs work.Digest) error {
	if err := s.speaksDigests(ctx, consumer, true); err != nil {
		return err
	}
	var ours []work.WorkState
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) (err error) {
		ours, err = ourWorks(ctx, c, consumer, s.life(), nil)
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
		// It has nothing to list; all buckets of nothing are known.
		if err := s.answerWorks(ctx, consumer, at, work.BucketWorks{Buckets: []int{0}}); err != nil {
			return err
		}
	default:
		a.Bits = digest.Bits(max(len(items), theirs.Works))
		a.Buckets = digest.Buckets(items, a.Bits)
	}
	if a.Same || theirs.Works == 0 {
		if err := s.compared(ctx, consumer); err != nil {
			return err
		}
	}
	if err := s.sendDigest(ctx, consumer, a); err != nil {
		// When the broker is back all agents are asked.
		s.log.LogAttrs(ctx, slog.LevelDebug, "digest not answered", slog.String("consumer", consumer),
			slog.Any("error", err))
	}
	return nil
}

func (s *Server) sendDigest(ctx context.Context, consumer string, a work.DigestAnswer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return s.publish(ctx, consumer, bus.Event{
		DataContentType: jsonType, ID: uuid.NewString(), Source: s.opts.SourceID, Type: work.ServerDigest, Time: time.Now().UTC(),
		Extensions: map[string]string{work.ExtClusterName: consumer}, Data: data,
	})
}

// answerWorks takes all works that an agent holds in some buckets.
func (s *Server) answerWorks(ctx context.Context, consumer string, at time.Time, b work.BucketWorks) error {
	scope := newBucketScope(b.Bits, b.Buckets)
	var versions []work.SpecVersion
	states := make([]work.WorkState, 0, len(b.Works))
	other := map[string]bool{} // of another life of our database
	for _, w := range b.Works {
		if !scope.has(w.ID) {
			continue // what is not asked for says nothing about what is missing
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
		if err := noteUnknownStatuses(ctx, tx, consumer, states); err != nil {
			return err
		}
		ours, err := ourWorks(ctx, tx, consumer, s.life(), scope)
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

// differingStatuses lists the works of which the agent has another status than
// the one that was taken.
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

// checkBuckets refuses a list of works that no comparison asked for.
func checkBuckets(b work.BucketWorks) error {
	if b.Bits < 0 || b.Bits > digest.MaxBits || len(b.Buckets) > 1<<b.Bits {
		return digest.ErrForm
	}
	for _, w := range b.Works {
		if err := checkBundleID(w.ID); err != nil {
			return err
		}
	}
	return nil
}

// speaksDigests notes whether an agent speaks digests, and when it did last.
// One of Open Cluster Management's does not.
func (s *Server) speaksDigests(ctx context.Context, consumer string, does bool) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		sql := `insert into agent_digest as a (consumer, answered_at) select $1, now() on conflict (consumer) do update set answered_at = now()`
		if !does {
			sql = `delete from agent_digest where consumer = $1`
		}
		_, err := tx.Exec(ctx, sql, consumer)
		if err != nil {
			return fmt.Errorf("noting how the agent of %s compares: %w", consumer, err)
		}
		return nil
	})
}
