package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Error codes of CLM's table.
const (
	codeForbidden = "HYPERFLEET-AUZ-001"
	codeNotFound  = "HYPERFLEET-NTF-001"
	codeState     = "HYPERFLEET-CNF-003"
	codeInvalid   = "HYPERFLEET-VAL-000"
)

func noCluster(id cluster.ID) error {
	return rest.Errorf(http.StatusNotFound, codeNotFound, "Cluster with id='%s' not found", rest.Shorten(string(id), 100))
}

// placeAttempts bounds how often place chooses again because another cluster took the room.
const placeAttempts = 50

// errChoiceStale is the error of a choice that does not fit any more.
var errChoiceStale = errors.New("the management cluster that was chosen does not fit any more")

// place places a cluster and returns the placement's document. There are four outcomes:
//  1. The cluster has a place already: place returns it unchanged.
//  2. A management cluster has room: the placement is Placed, and its reservation is committed with it.
//  3. No management cluster has room: the placement is Waiting, with the reasons.
//  4. The cluster does not exist or is being deleted: place returns an error with status 404 or 409.
//
// It chooses from the inventory, and from the database if the inventory has no room, because the inventory may lag
// behind. The transaction checks the choice against the chosen management cluster and the sum reserved
// there, so no placement exceeds the capacity, also when several processes place (decision 054).
func (f *Fleet) place(ctx context.Context, id cluster.ID) (d store.Document, err error) {
	for attempt := range placeAttempts {
		cluster, err := f.store.Get(ctx, kindCluster, string(id))
		if err := placeable(id, cluster, err); err != nil {
			return d, err
		}
		d, err = f.store.Get(ctx, KindPlacement, placementID(id))
		if err == nil {
			if p, err := placementOf(d); err != nil || p.State == api.Placed {
				return d, err // only startMove changes it
			}
		} else if !errors.Is(err, store.ErrNotFound) {
			return d, err
		}
		demand, err := f.demand(cluster)
		if err != nil {
			return d, err
		}
		source := fromMemory
		if attempt > 0 {
			source = fromDatabase
		}
		c, err := f.makeChoice(ctx, demand, source)
		if err != nil {
			return d, err
		}
		d, outcome, err := f.commitChoice(ctx, id, demand, c)
		f.endHold(c, demand)
		if errors.Is(err, errChoiceStale) {
			continue
		}
		if err == nil {
			f.metrics.countOutcome(outcome)
			// follow applies the document once more, without effect.
			f.shared.use(func(inv *inventory) { _, err = inv.apply(d, time.Now()) })
		}
		return d, err
	}
	e := rest.Errorf(http.StatusServiceUnavailable, codeState,
		"Cluster %s was not placed: others took the room %d times; try again", id, placeAttempts)
	e.RetryAfter = time.Second
	return d, e
}

// placeable refuses a cluster that does not exist or is being deleted.
func placeable(id cluster.ID, d store.Document, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return noCluster(id)
	case err == nil && d.DeletedAt != nil:
		return rest.Errorf(http.StatusConflict, codeState, "Cluster %s is being deleted; it is not placed any more", id)
	}
	return err
}

func (f *Fleet) demand(cluster store.Document) (Demand, error) {
	var wire clm.Resource
	if err := json.Unmarshal(cluster.Wire, &wire); err != nil {
		return Demand{}, fmt.Errorf("reading Cluster %s: %w", cluster.ID, err)
	}
	return demandOf(wire.Spec, f.opts.Plane), nil
}

// choice is the management cluster chosen for a cluster, before the transaction has checked it.
type choice struct {
	id          cluster.ManagementClusterID
	name        cluster.ManagementCluster // of the management cluster; "" when none has room
	explanation Explanation
	message     string
	isHeld      bool // the inventory holds the amounts until endHold
}

// choiceSource is where makeChoice reads the free amounts.
type choiceSource uint8

const (
	fromMemory   choiceSource = iota // memory, which may lag behind; then the database, if the inventory has no room
	fromDatabase                     // the database's present amounts
)

// makeChoice chooses a management cluster for a demand. A choice from the inventory holds the amounts there, and the
// caller calls endHold after its transaction. Without room the choice has no management cluster.
func (f *Fleet) makeChoice(ctx context.Context, d Demand, source choiceSource) (c choice, err error) {
	if source == fromMemory {
		var hosts []ManagementCluster // the inventory replaces their amounts, it never changes them
		f.shared.use(func(inv *inventory) {
			hosts = inv.hosts(time.Now())
			if i := choose(d, hosts); i >= 0 {
				c = choice{id: hosts[i].ID, name: hosts[i].Name, isHeld: true}
				inv.reserveInProgress(c.id, d.Amounts, 1)
			}
		})
		if c.id != "" {
			c.explanation = explain(d, hosts)
			return c, nil
		}
	}
	hosts, err := f.readHosts(ctx)
	if err != nil {
		return c, err
	}
	c.explanation = explain(d, hosts)
	if i := choose(d, hosts); i >= 0 {
		c.id, c.name = hosts[i].ID, hosts[i].Name
	} else {
		c.message = publicReason(d, hosts)
	}
	return c, nil
}

// endHold releases the amounts that a choice holds on the inventory.
func (f *Fleet) endHold(c choice, d Demand) {
	if c.isHeld {
		f.shared.use(func(inv *inventory) { inv.reserveInProgress(c.id, d.Amounts, -1) })
	}
}

// commitChoice writes a choice in a transaction. The error is errChoiceStale if the cluster does not fit any more.
func (f *Fleet) commitChoice(
	ctx context.Context,
	id cluster.ID,
	demand Demand,
	c choice,
) (d store.Document, outcome string,
	err error) {
	if c.id != "" {
		// The turn keeps concurrent placements on one management cluster from waiting with a connection each.
		end, err := f.store.WaitTurn(ctx, kindMC, string(c.id))
		if err != nil {
			return d, "", err
		}
		defer end()
	}
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		d, outcome, err = f.writeChoice(ctx, tx, id, demand, c)
		return err
	})
	return d, outcome, err
}

// writeChoice locks the cluster, its placement, the management cluster and its sum, in this order, checks the
// choice and writes it.
func (f *Fleet) writeChoice(
	ctx context.Context,
	tx *store.Tx,
	id cluster.ID,
	demand Demand,
	c choice,
) (d store.Document,
	outcome string, err error) {
	cluster, err := tx.GetForUpdate(ctx, kindCluster, string(id))
	if err := placeable(id, cluster, err); err != nil {
		return d, "", err
	}
	if fresh, err := f.demand(cluster); err != nil || !reflect.DeepEqual(fresh, demand) {
		return d, "", errors.Join(err, errChoiceStale)
	}
	d, err = tx.GetForUpdate(ctx, KindPlacement, placementID(id))
	exists := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, "", err
	}
	var have placement
	if exists {
		if have, err = placementOf(d); err != nil || have.State != api.Waiting {
			return d, outcomeKept, err
		}
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	next := placement{placementRequest: placementRequest{ClusterID: id, Demand: demand}}
	next.State, next.DecidedTime, next.Explanation = api.Waiting, now, c.explanation
	if outcome = outcomeWaiting; c.id != "" {
		outcome, next.State, next.ManagementCluster, next.ManagementClusterID = outcomePlaced, api.Placed, c.name, c.id
		if err := f.reserve(ctx, tx, c.id, demand, now); err != nil {
			return d, "", err
		}
	} else {
		next.Message = c.message
		if exists && have.Message == next.Message && reflect.DeepEqual(have.Explanation, next.Explanation) {
			next.DecidedTime = have.DecidedTime // equal content creates no version, and so no event
		}
	}
	if exists {
		d, _, err = tx.Update(ctx, KindPlacement, placementID(id), 0, func(d *store.Document) error {
			return next.encodeInto(d)
		})
		return d, outcome, err
	}
	d = store.Document{Kind: KindPlacement, ID: placementID(id), CreatedAt: now}
	if err := next.encodeInto(&d); err != nil {
		return d, "", err
	}
	d, err = tx.Create(ctx, d)
	return d, outcome, err
}

// reserve adds the amounts of a demand to the sum of a management cluster, which stays locked until the transaction
// ends. The error is errChoiceStale when the demand does not fit any more.
func (f *Fleet) reserve(ctx context.Context, tx *store.Tx, id cluster.ManagementClusterID, d Demand,
	now time.Time) error {
	doc, err := tx.GetForUpdate(ctx, kindMC, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return errChoiceStale
	}
	if err != nil {
		return err
	}
	s, err := lockSum(ctx, tx, id)
	if err != nil {
		return err
	}
	m := f.host(doc, now)
	m.Reserved, m.Placements = s.reserved, s.placements
	if !m.fits(d) {
		return errChoiceStale
	}
	m.add(d.Amounts, 1)
	return setSum(ctx, tx, id, sum{m.Placements, m.Reserved})
}

// host returns a management cluster from its document, with the state of its agent at now.
func (f *Fleet) host(d store.Document, now time.Time) ManagementCluster {
	r, changedAt := decodeMC(d), now
	f.shared.use(func(inv *inventory) {
		if have, ok := inv.mcs[cluster.ManagementClusterID(d.ID)]; ok && have.reportTime().Equal(r.reportTime()) {
			changedAt = have.reportMovedAt
		}
	})
	return r.withStateAt(now, changedAt)
}

// readHosts returns all management clusters from the database, with the database's sums. It reads only the
// documents whose versions the inventory does not have.
func (f *Fleet) readHosts(ctx context.Context) (hosts []ManagementCluster, err error) {
	now := time.Now()
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		hosts = hosts[:0]
		sums, err := readSums(ctx, tx)
		if err != nil {
			return err
		}
		versions, err := readVersions(ctx, tx)
		if err != nil {
			return err
		}
		var changed []string
		f.shared.use(func(inv *inventory) {
			for id, version := range versions {
				if m, ok := inv.mcs[cluster.ManagementClusterID(id)]; ok && m.doc.Version == version {
					hosts = append(hosts, m.withStateAt(now, m.reportMovedAt))
				} else {
					changed = append(changed, id)
				}
			}
		})
		if len(changed) > maxSingleReads {
			docs, err := tx.ListScope(ctx, kindMC, "")
			if err != nil {
				return err
			}
			hosts, changed = hosts[:0], nil
			for _, d := range docs {
				hosts = append(hosts, f.host(d, now))
			}
		}
		for _, id := range changed {
			d, err := tx.Get(ctx, kindMC, id)
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			hosts = append(hosts, f.host(d, now))
		}
		for i := range hosts {
			s := sums[hosts[i].ID]
			hosts[i].Reserved, hosts[i].Placements = s.reserved, s.placements
		}
		return nil
	})
	return hosts, err
}

// maxSingleReads is how many changed management clusters readHosts reads one by one. If more have changed, it reads
// all with one statement.
const maxSingleReads = 50

// readVersions reads the versions of the region's own management clusters, by id.
func readVersions(ctx context.Context, tx *store.Tx) (map[string]int64, error) {
	fail := func(err error) (map[string]int64, error) {
		return nil, fmt.Errorf("reading the versions of management clusters: %w", err)
	}
	rows, err := tx.Query(ctx, `select id, version from document where kind = $1 and scope = '' and removed_at is null`,
		string(kindMC))
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	versions := map[string]int64{}
	for rows.Next() {
		var id string
		var version int64
		if err := rows.Scan(&id, &version); err != nil {
			return fail(err)
		}
		versions[id] = version
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return versions, nil
}
