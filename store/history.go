package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Record is one entry of the history: a change of a document of a kind with History or BriefHistory, or a
// call of Tx.Record. The transaction of the change committed it.
type Record struct {
	Seq        int64 // unique in this database; grows, but not in the order of commits
	At         time.Time
	Action     string // create, update, delete (deletion was requested), remove; or Tx.Record's
	Kind       Kind
	ID, Scope  string
	Version    int64 // of the document after the change; 0 from Tx.Record
	Generation int64
	Actor      Actor
	Spec       json.RawMessage // nil if the change did not touch it
	Status     json.RawMessage // nil if the change did not touch it
	Note       json.RawMessage // from Tx.Record
}

const recordColumns = `h.seq, h.at, h.action, h.kind, h.id, h.scope, h.version, h.generation,
	h.principal, h.account, h.request_id, h.spec, h.status, h.packed_spec, h.packed, h.note`

func (r *Record) targets(packedSpec, packed *unpackedText) []any {
	return []any{&r.Seq, &r.At, &r.Action, &r.Kind, &r.ID, &r.Scope, &r.Version, &r.Generation,
		&r.Actor.Principal, &r.Actor.Account, &r.Actor.RequestID, (*[]byte)(&r.Spec), (*[]byte)(&r.Status), packedSpec,
		packed, (*[]byte)(&r.Note)}
}

// HistoryQuery selects the records that History returns: those of one document or, without ID,
// those of some kinds.
type HistoryQuery struct {
	Kind   Kind
	Kinds  []Kind // instead of Kind and ID
	ID     string
	Before int64 // only records with a smaller Seq; 0: all
	Limit  int   // default 100
}

// ofKindsSQL reads up to limit records of each kind from an index, and returns the latest limit of
// these.
const ofKindsSQL = `select ` + recordColumns + ` from unnest($1::text[]) k (kind) cross join lateral (
		select * from history h where h.kind = k.kind and ($2::bigint = 0 or h.seq < $2) order by h.seq desc limit $3) h
	order by h.seq desc limit $3`

// History returns records, the latest first. No match is no error. A caller reads on with the Seq
// of the last record as Before.
func (s *Store) History(ctx context.Context, q HistoryQuery) ([]Record, error) {
	if q.Limit <= 0 {
		q.Limit = 100
	}
	var records []Record
	err := s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) (err error) {
		if q.ID == "" {
			kinds := q.Kinds
			if len(kinds) == 0 {
				kinds = []Kind{q.Kind}
			}
			records, err = scanRecords(c.Query(ctx, ofKindsSQL, kinds, q.Before, q.Limit))
			return err
		}
		records, err = scanRecords(c.Query(ctx, `select `+recordColumns+
			` from history h where kind = $1 and id = $2 and ($3::bigint = 0 or seq < $3)
			order by seq desc limit $4`, string(q.Kind), q.ID, q.Before, q.Limit))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("history of %s %s: %w", q.Kind, q.ID, err)
	}
	return records, nil
}

func scanRecords(rows pgx.Rows, err error) ([]Record, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Record, error) {
		var r Record
		var spec, status unpackedText
		if err := row.Scan(r.targets(&spec, &status)...); err != nil {
			return r, err
		}
		r.At = r.At.UTC()
		if spec != nil {
			r.Spec = json.RawMessage(spec)
		}
		if status != nil {
			r.Status = json.RawMessage(status)
		}
		return r, nil
	})
}

// trimBatch is the maximum number of records that one transaction deletes.
const trimBatch = 5000

// trimSQL deletes old records. It reads only the first records of the primary key, which are the
// oldest.
const trimSQL = `with deleted as (delete from history
		where (xid, seq) in (select xid, seq from history order by xid, seq limit $2) and at < $1 returning 1)
	select count(*) from deleted`

// TrimHistory deletes the records from before olderThan and returns their number, also with an
// error. olderThan must be at least an hour ago, because the store resolves lost commits by their
// records; otherwise TrimHistory returns ErrInvalid. Several processes may call it at once.
func (s *Store) TrimHistory(ctx context.Context, olderThan time.Time) (int, error) {
	if time.Since(olderThan) < time.Hour {
		return 0, fmt.Errorf("%w: records of the last hour are needed to resolve lost commits", ErrInvalid)
	}
	total := 0
	for {
		var n int
		err := s.Tx(ctx, func(tx *Tx) error {
			return tx.QueryRow(ctx, trimSQL, olderThan.UTC(), trimBatch).Scan(&n)
		})
		if err != nil {
			return total, fmt.Errorf("trimming the history: %w", err)
		}
		if total += n; n < trimBatch {
			return total, nil
		}
	}
}
