package fleet

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

// survey is the result of reading all placements in pages, so that the work of a statement does not grow with the
// number of clusters. The pages are read at different times, so the caller checks each finding again before it acts.
type survey struct {
	// ownerless are the clusters that do not exist any more and whose placements are not Orphaned yet.
	ownerless []cluster.ID
	sums      map[cluster.ManagementClusterID]sum // of the reservations
}

// surveyPage is how many placements one statement reads.
const surveyPage = 2000

// surveySQL reads the placements after an id. PostgreSQL finds the page and each owner by the primary key; without
// the inner limit it may read all clusters instead.
const surveySQL = `with page as materialized (
		select d.id, d.spec->>'cluster_id' as cluster, d.status->>'state' as state,
			d.status->>'management_cluster_id' as mc,
			d.status->'move'->>'reserved_on' as second, d.spec->'demand'->'amounts' as amounts, d.deleted_at
		from document d where d.kind = 'Placement' and d.removed_at is null and d.id > $1 order by d.id limit $2)
	select p.id, coalesce(p.cluster, ''), p.state is distinct from 'Orphaned' and p.deleted_at is null and owner.id is null,
		coalesce(p.state, ''), coalesce(p.mc, ''), coalesce(p.second, ''), p.amounts
	from page p left join lateral (select c.id from document c
		where c.kind = 'Cluster' and c.id = p.cluster and c.removed_at is null limit 1) owner on true
	order by p.id`

// survey reads all placements.
func (f *Fleet) survey(ctx context.Context) (survey, error) {
	s := survey{sums: map[cluster.ManagementClusterID]sum{}}
	for last, more := "", true; more; {
		page := survey{sums: map[cluster.ManagementClusterID]sum{}}
		next, rows := last, 0
		err := f.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			page = survey{sums: map[cluster.ManagementClusterID]sum{}} // Read may call this again
			next, rows, err = page.read(ctx, conn, last)
			return err
		})
		if err != nil {
			return s, fmt.Errorf("reading placements after %q: %w", last, err)
		}
		s.add(page)
		last, more = next, rows == surveyPage
	}
	return s, nil
}

// read adds the placements after an id, and returns the last id and the number of them.
func (s *survey) read(ctx context.Context, conn *pgx.Conn, after string) (last string, n int, err error) {
	rows, err := conn.Query(ctx, surveySQL, after, surveyPage)
	if err != nil {
		return "", 0, err
	}
	var owner cluster.ID
	var mc, second cluster.ManagementClusterID
	var state string
	var ownerless bool
	var amounts []byte
	_, err = pgx.ForEachRow(rows, []any{&last, &owner, &ownerless, &state, &mc, &second, &amounts}, func() error {
		if n++; ownerless {
			s.ownerless = append(s.ownerless, owner)
		}
		for _, on := range []cluster.ManagementClusterID{mc, second} {
			if state != string(api.Waiting) && on != "" {
				s.reserve(on, sum{1, decodeAmounts(amounts)})
			}
		}
		amounts = nil
		return nil
	})
	return last, n, err
}

// decodeAmounts returns the amounts of a placement, and none when they are damaged. The sum of the management cluster
// is too small then: whoever adds up its placements to correct it finds the damage, and the other sums are right.
func decodeAmounts(text []byte) (amounts Amounts) {
	if text == nil || json.Unmarshal(text, &amounts) != nil {
		return nil
	}
	return amounts
}

// reserve adds to the sum of a management cluster.
func (s *survey) reserve(mc cluster.ManagementClusterID, more sum) {
	have := s.sums[mc]
	s.sums[mc] = sum{have.placements + more.placements, plus(have.reserved, more.reserved, 1)}
}

// add adds the result of a page.
func (s *survey) add(page survey) {
	s.ownerless = append(s.ownerless, page.ownerless...)
	for mc, more := range page.sums {
		s.reserve(mc, more)
	}
}
