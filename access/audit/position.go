package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/store"
)

// exportTable has how far the chain is exported, by the target of the export. One process at a time owns a target.
const exportTable = `
create table audit_export (
	target      text primary key,
	seq         bigint not null, -- of the last exported record
	hash        text not null,
	owner       text not null,
	owned_until timestamptz not null -- by the clock of this database
);`

// exportPosition has the facts that the owner of an export reads from the database before each round.
type exportPosition struct {
	last   Anchor // the last exported record
	atLast string // hash of the chain's record with that number; "" if the chain has none
	head   Anchor // the last record of the chain
	first  Anchor // the record before the first one that is kept
}

// errNotOwner means: another process exports the records.
var errNotOwner = errors.New("another replica exports the audit records")

// ownExport makes owner the owner of a target for lease, and returns its position. If another process owns the target,
// the error is errNotOwner, and the position is right all the same. A lease that ends later than one that begins now
// was written before the clock was set back, and counts no more.
func (c *Chain) ownExport(ctx context.Context, target, owner string, lease time.Duration) (p exportPosition,
	err error) {
	var isOwner bool
	err = c.store.Tx(ctx, func(tx *store.Tx) error {
		tag, err := tx.Exec(ctx, `insert into audit_export as e values ($1, 0, $2, $3, now() + $4::interval)
			on conflict (target) do update set owner = $3, owned_until = now() + $4::interval
			where e.owner = $3 or e.owned_until not between now() and now() + $4::interval`, target, noHash, owner, lease)
		if err != nil {
			return err
		}
		isOwner = tag.RowsAffected() == 1
		return tx.QueryRow(ctx, `select e.seq, e.hash, h.seq, h.hash, h.anchor, h.anchor_hash, case e.seq
				when h.anchor then h.anchor_hash
				else coalesce((select r.hash from audit_record r where r.seq = e.seq), '') end
			from audit_export e, audit_head h where e.target = $1`, target).Scan(&p.last.Seq, &p.last.Hash, &p.head.Seq,
			&p.head.Hash, &p.first.Seq, &p.first.Hash, &p.atLast)
	})
	if err == nil && !isOwner {
		err = errNotOwner
	}
	return p, err
}

// moveExport stores that the records up to to are exported, if the position is still from. Otherwise the error is
// errNotOwner: another process has exported meanwhile, and its objects have the records of this one's.
func (c *Chain) moveExport(ctx context.Context, target string, from, to Anchor) error {
	return c.store.Tx(ctx, func(tx *store.Tx) error {
		tag, err := tx.Exec(ctx, `update audit_export set seq = $1, hash = $2 where target = $3 and seq = $4 and hash = $5`,
			to.Seq, to.Hash, target, from.Seq, from.Hash)
		if err == nil && tag.RowsAffected() == 0 {
			err = errNotOwner
		}
		return err
	})
}

// leaveExport lets another process own the target at once.
func (c *Chain) leaveExport(ctx context.Context, target, owner string) error {
	return c.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `update audit_export set owned_until = '-infinity' where target = $1 and owner = $2`, target,
			owner)
		return err
	})
}

// next returns the record after which the export goes on. If that is not the last exported record, problem says why:
// then records are missing in the export, or it has two chains from some record on.
func (p exportPosition) next() (from Anchor, problem string) {
	switch {
	case p.atLast == p.last.Hash:
		return p.last, ""
	case p.last.Seq == 0: // the first export of a chain that has a past
		return p.first, ""
	case p.last.Seq < p.first.Seq:
		return p.first, fmt.Sprintf("records %d to %d were deleted by age before they were exported", p.last.Seq+1,
			p.first.Seq)
	default:
		return p.first, fmt.Sprintf("record %d is not the one that was exported: somebody replaced the chain; "+
			"all its records are exported anew", p.last.Seq)
	}
}

// recordsAfter returns at most limit records after a number, the oldest first. If some of them were deleted by age, the
// error is errDeletedByAge.
func (c *Chain) recordsAfter(ctx context.Context, after int64, limit int) (entries []Entry, err error) {
	var anchor int64 // in the same snapshot: the last record that was deleted by age
	err = c.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `select seq, previous, hash, content, (select anchor from audit_head) from audit_record
			where seq > $1 order by seq limit $2`, after, limit)
		if err != nil {
			return err
		}
		entries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
			var content string
			err = row.Scan(&e.Seq, &e.Previous, &e.Hash, &content, &anchor)
			e.Record = []byte(content)
			return e, err
		})
		return err
	})
	if err == nil && anchor > after {
		return nil, errDeletedByAge
	}
	return entries, err
}
