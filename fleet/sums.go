package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"atoll.dev/cluster"
	"atoll.dev/store"
)

// reservationTable has the sums of the placements' reservations, so that a decision reads one row instead of
// one for each placement. The transactions that change placements change the sums.
const reservationTable = `
create table reservation (
	management_cluster text primary key, -- its id
	placements         int not null,
	reserved           jsonb not null
);
`

// sum is the sum of the reservations on one management cluster.
type sum struct {
	placements int
	reserved   Amounts
}

// lockSum reads and locks the sum of a management cluster. If there is no row, there is nothing to lock; only
// placements create rows, and each holds the lock of the management cluster's document.
func lockSum(ctx context.Context, tx *store.Tx, id cluster.ManagementClusterID) (sum, error) {
	return scanSum(id, tx.QueryRow(ctx, selectSum+` for update`, id))
}

// readSum reads the sum of a management cluster without a lock.
func readSum(ctx context.Context, tx *store.Tx, id cluster.ManagementClusterID) (sum, error) {
	return scanSum(id, tx.QueryRow(ctx, selectSum, id))
}

const selectSum = `select placements, reserved from reservation where management_cluster = $1`

func scanSum(id cluster.ManagementClusterID, row pgx.Row) (s sum, err error) {
	err = row.Scan(&s.placements, &s.reserved)
	if errors.Is(err, pgx.ErrNoRows) {
		return sum{reserved: Amounts{}}, nil
	}
	if err != nil {
		return s, fmt.Errorf("reading the reservations on %s: %w", id, err)
	}
	return s, nil
}

// setSum stores the sum of a management cluster, and deletes the row of an empty sum.
func setSum(ctx context.Context, tx *store.Tx, id cluster.ManagementClusterID, s sum) (err error) {
	if s.placements <= 0 && len(s.reserved) == 0 {
		_, err = tx.Exec(ctx, `delete from reservation where management_cluster = $1`, id)
	} else {
		_, err = tx.Exec(ctx, `insert into reservation (management_cluster, placements, reserved) values ($1, $2, $3)
			on conflict (management_cluster) do update set placements = excluded.placements, reserved = excluded.reserved`, id, s.placements, s.reserved)
	}
	if err != nil {
		return fmt.Errorf("reserving on %s: %w", id, err)
	}
	return nil
}

// readSums reads the sums of all management clusters.
func readSums(ctx context.Context, tx *store.Tx) (map[cluster.ManagementClusterID]sum, error) {
	fail := func(err error) (map[cluster.ManagementClusterID]sum, error) {
		return nil, fmt.Errorf("reading reservations: %w", err)
	}
	rows, err := tx.Query(ctx, `select management_cluster, placements, reserved from reservation`)
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	sums := map[cluster.ManagementClusterID]sum{}
	for rows.Next() {
		var id cluster.ManagementClusterID
		var s sum
		if err := rows.Scan(&id, &s.placements, &s.reserved); err != nil {
			return fail(err)
		}
		sums[id] = s
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return sums, nil
}
