package store

import (
	"fmt"
	"strconv"
	"strings"
)

// checkChangedSince returns ErrInvalid if a list of changes has an order, a number or a count, which only
// lists of all documents have.
func (q Query) checkChangedSince() error {
	if q.listsChanges() && (len(q.OrderBy) > 0 || q.Offset != 0 || q.Count) {
		return fmt.Errorf("%w: a list of changes has neither an order nor numbered pages nor a count", ErrInvalid)
	}
	return nil
}

// listsChanges reports whether the query has a cursor. A malformed cursor sees no document, as none does.
func (q Query) listsChanges() bool {
	_, err := q.ChangedSince.position()
	return err == nil
}

// feedOrder is the order of the index of the table feed.
var feedOrder = []Order{{Expr: "f.xid", Type: "xid8"}, {Expr: "f.kind", Type: "text"}, {Expr: "f.id", Type: "text"}}

// changedPageSQL returns the statement of a page of changes. It reads the table feed in the order of its index,
// from the oldest transaction that the cursor may not see, and looks up each document by its key: the other
// documents cost nothing, however many there are. "offset 0" makes PostgreSQL do so.
func (b listBuilder) changedPageSQL(at position, after string, arg func(any) string) string {
	sameDatabase := "(select incarnation from store_meta) = " + arg(at.incarnation)
	snapshot := arg(at.snapshot) + "::text::pg_snapshot"
	where := "f.kind in (" + b.kindList() + ") and f.xid >= case when " + sameDatabase + " then pg_snapshot_xmin(" +
		snapshot + ") else '0'::xid8 end and (not " + sameDatabase + " or not pg_visible_in_snapshot(f.xid, " + snapshot +
		"))" + after
	return `select m.incarnation, m.snap, m.inserted, m.flushed, 0, ` + strings.ReplaceAll(b.listed(), "d.", "p.") +
		b.texts + `
		from ` + cursorPartsSQL + ` left join lateral (select ` + b.rowColumns() + b.keys + ` from feed f
			cross join lateral (select * from document d where d.kind = f.kind and d.id = f.id and ` + b.matching + ` offset 0) d
			where ` + where + ` order by ` + orderSQL(feedOrder) + ` limit ` + strconv.Itoa(b.Limit+1) + `) p on true
		order by ` + b.order
}
