package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// reservations are the sums of what placements reserve, so that a decision
// reads one row for each management cluster and not one for each placement.
// They change in the transactions that change the placements, and the sweep
// compares them.
const reservations = `
create table reservation (
	management_cluster text primary key, -- its id
	placements         int not null,
	reserved           jsonb not null
);
`

// decisions is the advisory lock under which placements are made and released,
// one after the other in all processes: a decision sees all that were made
// before it. Nobody locks anything else before it.
const decisions = 0x666c656574 // "fleet"

// Codes of errors, of CLM's table.
const (
	codeForbidden = "HYPERFLEET-AUZ-001"
	codeNotFound  = "HYPERFLEET-NTF-001"
	codeNoCluster = "HYPERFLEET-NTF-002"
	codeState     = "HYPERFLEET-CNF-003"
)

func noCluster(id string) error {
	return rest.Errorf(http.StatusNotFound, codeNoCluster, "Cluster with id='%s' not found", rest.Shorten(id, 100))
}

func (f *Fleet) beginDecision(ctx context.Context) (end func(), err error) {
	// Who waits in this process uses no connection.
	return f.store.Line(ctx, KindPlacement, "decisions")
}

func lockDecisions(ctx context.Context, tx *store.Tx) error {
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(decisions))
	return err
}

// place places a cluster, or finds it placed, or has it wait. It returns the
// placement's document. A cluster that is not there, or is being deleted, is
// refused.
func (f *Fleet) place(ctx context.Context, id string) (d store.Document, err error) {
	// What is placed stays where it is, so that can be told without a lock.
	cluster, err := f.store.Get(ctx, kindCluster, id)
	if err := placeable(id, cluster, err); err != nil {
		return d, err
	}
	d, err = f.store.Get(ctx, KindPlacement, placementID(id))
	if err == nil {
		if p, err := placementOf(d); err != nil || p.State == api.Placed {
			return d, err
		}
	} else if !errors.Is(err, store.ErrNotFound) {
		return d, err
	}
	end, err := f.beginDecision(ctx)
	if err != nil {
		return d, err
	}
	defer end()
	outcome := ""
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		if err := lockDecisions(ctx, tx); err != nil {
			return err
		}
		d, outcome, err = f.decide(ctx, tx, id)
		return err
	})
	if err == nil {
		f.metrics.decided(outcome)
	}
	return d, err
}

// placeable checks what was found of a cluster.
func placeable(id string, d store.Document, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return noCluster(id)
	case err == nil && d.DeletedAt != nil:
		return rest.Errorf(http.StatusConflict, codeState, "Cluster %s is being deleted; it is not placed any more", id)
	}
	return err
}

func (f *Fleet) decide(ctx context.Context, tx *store.Tx, id string) (d store.Document, outcome string, err error) {
	// It stays as it is, and undeleted, until the placement is there.
	cluster, err := tx.GetForUpdate(ctx, kindCluster, id)
	if err := placeable(id, cluster, err); err != nil {
		return d, "", err
	}
	var wire clm.Resource
	if err := json.Unmarshal(cluster.Wire, &wire); err != nil {
		return d, "", fmt.Errorf("reading Cluster %s: %w", id, err)
	}
	next := placement{placementWanted: placementWanted{ClusterID: id, Demand: demandOf(wire.Spec, f.opts.Plane)}}
	d, err = tx.Get(ctx, KindPlacement, placementID(id))
	there := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, "", err
	}
	var have placement
	if there {
		if have, err = placementOf(d); err != nil || have.State == api.Placed {
			return d, outcomeKept, err
		}
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	chosen, candidates, err := f.find(ctx, tx, next.Demand, now)
	if err != nil {
		return d, "", err
	}
	next.State, next.DecidedTime, next.Candidates = api.Waiting, now, candidates
	outcome = outcomeWaiting
	if chosen != nil {
		next.State, next.ManagementCluster, next.ManagementClusterID = api.Placed, chosen.Name, chosen.ID
		outcome = outcomePlaced
		if err := reserve(ctx, tx, chosen, next.Demand.Amounts, 1); err != nil {
			return d, "", err
		}
	} else if there && slices.EqualFunc(have.Candidates, candidates, sameCandidate) {
		next.DecidedTime = have.DecidedTime // as it was: nobody has to hear of it
	}
	if there {
		d, _, err = tx.Update(ctx, KindPlacement, placementID(id), 0, func(d *store.Document) error { return next.into(d) })
		return d, outcome, err
	}
	d = store.Document{Kind: KindPlacement, ID: placementID(id), CreatedAt: now}
	if err := next.into(&d); err != nil {
		return d, "", err
	}
	d, err = tx.Create(ctx, d)
	return d, outcome, err
}

func sameCandidate(a, b api.Candidate) bool {
	return a.Name == b.Name && a.Fits == b.Fits && a.Score == b.Score && slices.Equal(a.Reasons, b.Reasons)
}

// find decides, and locks what it chose: nobody deletes it or changes what it
// declares until the transaction ends. nil: nothing fits.
func (f *Fleet) find(ctx context.Context, tx *store.Tx, d Demand, now time.Time) (*ManagementCluster, []api.Candidate, error) {
	fleet, err := f.read(ctx, tx, now)
	if err != nil {
		return nil, nil, err
	}
	for {
		i, candidates := Decide(d, fleet)
		if i < 0 {
			return nil, candidates, nil
		}
		m := &fleet[i]
		doc, err := tx.GetForUpdate(ctx, kindMC, m.ID)
		if errors.Is(err, store.ErrNotFound) {
			fleet = slices.Delete(fleet, i, i+1)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		// It may have changed between the reading and the lock. Then there is
		// one that fits less, so this ends.
		fresh := read(doc).at(now)
		fresh.Reserved, fresh.Placements = m.Reserved, m.Placements
		if *m = fresh; m.fits(d) {
			return m, candidates, nil
		}
	}
}

// read reads all management clusters with what is reserved there.
func (f *Fleet) read(ctx context.Context, tx *store.Tx, now time.Time) ([]ManagementCluster, error) {
	docs, err := tx.InScope(ctx, kindMC, "") // the region's own have no tenant
	if err != nil {
		return nil, err
	}
	sums, err := readReservations(ctx, tx)
	if err != nil {
		return nil, err
	}
	fleet := f.readings.of(docs, now)
	for i := range fleet {
		s := sums[fleet[i].ID]
		fleet[i].Reserved, fleet[i].Placements = s.reserved, s.placements
	}
	return fleet, nil
}

// sum is what the placements on one management cluster reserve.
type sum struct {
	placements int
	reserved   Amounts
}

func readReservations(ctx context.Context, tx *store.Tx) (map[string]sum, error) {
	fail := func(err error) (map[string]sum, error) { return nil, fmt.Errorf("reading reservations: %w", err) }
	rows, err := tx.Query(ctx, `select management_cluster, placements, reserved from reservation`)
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	sums := map[string]sum{}
	for rows.Next() {
		var id string
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

// reserve changes what is reserved on a management cluster by one placement, up
// or down.
func reserve(ctx context.Context, tx *store.Tx, m *ManagementCluster, amounts Amounts, times int64) error {
	m.add(amounts, times)
	return setReservation(ctx, tx, m.ID, sum{m.Placements, m.Reserved})
}

func setReservation(ctx context.Context, tx *store.Tx, id string, s sum) (err error) {
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

// release ends a cluster's placement, if it has one, and gives back what it
// reserves. admits sees the cluster, if it is still there, with the placement,
// under the lock.
func (f *Fleet) release(ctx context.Context, id string, admits func(cluster *store.Document, p placement) error) (released bool, err error) {
	if _, err := f.store.Get(ctx, KindPlacement, placementID(id)); errors.Is(err, store.ErrNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	end, err := f.beginDecision(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		released = false
		if err := lockDecisions(ctx, tx); err != nil {
			return err
		}
		d, err := tx.Get(ctx, KindPlacement, placementID(id))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		p, err := placementOf(d)
		if err != nil {
			return err
		}
		var cluster *store.Document
		if c, err := tx.Get(ctx, kindCluster, id); err == nil {
			cluster = &c
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err := admits(cluster, p); err != nil {
			return err
		}
		if p.State == api.Placed {
			sums, err := readReservations(ctx, tx)
			if err != nil {
				return err
			}
			s := sums[p.ManagementClusterID]
			if err := setReservation(ctx, tx, p.ManagementClusterID, sum{s.placements - 1, plus(s.reserved, p.Demand.Amounts, -1)}); err != nil {
				return err
			}
		}
		released = true
		return tx.Remove(ctx, KindPlacement, d.ID, 0)
	})
	if err == nil && released {
		f.metrics.decided(outcomeReleased)
	}
	return released && err == nil, err
}
