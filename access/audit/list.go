package audit

import (
	"context"
	"fmt"
	"time"

	"atoll.dev/cluster"

	"github.com/jackc/pgx/v5"
)

// Query selects records of the chain. An empty member selects all records.
type Query struct {
	// Account selects the changes that the account's principals made, and all changes of the account's resources.
	Account                    cluster.Account
	From, To                   time.Time // To is exclusive
	Principal, Action, Outcome string
	ResourceKind, ResourceID   string
	RequestID                  string
	After, Before              int64 // only records with a larger, a smaller Seq; 0: all
	Limit                      int
	Ascending                  bool // the oldest first, instead of the latest
}

// Page has the selected records and both ends of the chain at the same moment.
type Page struct {
	Entries []Entry
	Head    Anchor // the last record of the chain
	Anchor  Anchor // the record before the first one that is kept
}

// conditions are the members of a Query except Account. Their parameters are those of List.
const conditions = ` ($2 = '' or at >= $2) and ($3 = '' or at < $3) and ($4 = '' or principal = $4)
	and ($5 = '' or action = $5) and ($6 = '' or outcome = $6) and ($7 = '' or kind = $7) and ($8 = '' or id = $8)
	and seq > $9 and ($10::bigint = 0 or seq < $10)
	and ($12 = '' or content::jsonb->>'requestId' = $12)`

// listSQL returns the statement of List in an order, asc or desc. It joins the records by the account of the principal
// with those by the account of the resource, since each has its own index.
func listSQL(order string) string {
	part := func(condition string) string {
		return `(select seq, previous, hash, content from audit_record where ` + condition + ` and ` + conditions +
			` order by seq ` + order + ` limit $11)`
	}
	return `with h as materialized (select seq, hash, anchor, anchor_hash from audit_head),
		r as (` + part(`$1 <> '' and account = $1`) + ` union ` + part(`$1 <> '' and owner = $1`) + ` union ` +
		part(`$1 = ''`) + `)
		select h.*, r.* from h left join lateral (select * from r order by seq ` + order + ` limit $11) r on true
		order by r.seq ` + order
}

var ascendingSQL, descendingSQL = listSQL("asc"), listSQL("desc")

// List returns at most q.Limit of the records that q selects, the latest first unless q.Ascending, from one snapshot of
// the database. Without such records it returns a page with the ends of the chain alone.
func (c *Chain) List(ctx context.Context, q Query) (page Page, err error) {
	sql := descendingSQL
	if q.Ascending {
		sql = ascendingSQL
	}
	text := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return timeText(t)
	}
	err = c.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		page = Page{Entries: []Entry{}}
		rows, err := conn.Query(ctx, sql, q.Account, text(q.From), text(q.To), q.Principal, q.Action, q.Outcome,
			q.ResourceKind, q.ResourceID, q.After, q.Before, max(1, q.Limit), q.RequestID)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var seq *int64
			var previous, hash, content *string
			if err := rows.Scan(&page.Head.Seq, &page.Head.Hash, &page.Anchor.Seq, &page.Anchor.Hash, &seq, &previous, &hash,
				&content); err != nil {
				return err
			}
			if seq != nil {
				page.Entries = append(page.Entries, Entry{Seq: *seq, Previous: *previous, Hash: *hash,
					Record: []byte(*content)})
			}
		}
		return rows.Err()
	})
	if err != nil {
		return Page{}, fmt.Errorf("listing audit records: %w", err)
	}
	return page, nil
}
