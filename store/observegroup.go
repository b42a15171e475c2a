package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// observeGroupSQL writes several short forms, and returns the tokens of those that it has written. It leaves out
// documents that have changed, and those whose rows are locked: a locked document delays no other one, and no two
// groups can deadlock. The subquery around the first argument is explained at unnest.
const observeGroupSQL = `update document d set observed = o.observed, token = o.token
	from (select d.ctid as place, u.token, u.observed
		from unnest((select $1::text[]), $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[])
			as u (kind, id, version, before, token, observed)
		join document d on d.kind = u.kind and d.id = u.id and d.version = u.version and d.token = u.before
			and d.removed_at is null
		for no key update of d skip locked) o
	where d.ctid = o.place returning o.token`

// sendObservations sends one statement with the short forms of a group, and sets the outcome of each.
func (s *Store) sendObservations(ctx context.Context, group []*sharedWrite) {
	kinds, ids := make([]string, len(group)), make([]string, len(group))
	versions, before, tokens := make([]int64, len(group)), make([]int64, len(group)), make([]int64, len(group))
	columns := make([][]byte, len(group))
	for i, w := range group {
		o := w.observed
		kinds[i], ids[i], columns[i] = string(o.kind), o.id, o.column
		versions[i], before[i], tokens[i] = o.version, o.before, o.token
	}
	s.sendGroup(ctx, group, func(ctx context.Context, conn *pgx.Conn) ([]int64, error) {
		return collectTokens(conn.Query(ctx, observeGroupSQL, kinds, ids, versions, before, tokens, columns))
	})
}
