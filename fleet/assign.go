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

// errTaken is the error of a choice that does not fit any more.
var errTaken = errors.New("the management cluster that was chosen does not fit any more")

// place places a cluster and returns the placement's document: Placed, now or earlier, or Waiting. It
// refuses a cluster that does not exist or is being deleted.
//
// It chooses by the board, and by the database where the board has no room, because the board may lag
// behind. The transaction checks the choice against the chosen management cluster and the sum reserved
// there, so the capacity is never exceeded, also when several processes place (decision 054).
func (f *Fleet) place(ctx context.Context, id cluster.ID) (d store.Document, err error) {
	for attempt := range placeAttempts {
		cluster, err := f.store.Get(ctx, kindCluster, string(id))
		if err := placeable(id, cluster, err); err != nil {
			return d, err
		}
		d, err = f.store.Get(ctx, KindPlacement, placementID(id))
		if err == nil {
			if p, err := placementOf(d); err != nil || p.State == api.Placed {
				return d, err // a placement never moves
			}
		} else if !errors.Is(err, store.ErrNotFound) {
			return d, err
		}
		demand, err := f.demand(cluster)
		if err != nil {
			return d, err
		}
		source := fromBoard
		if attempt > 0 {
			source = fromDatabase
		}
		c, err := f.choice(ctx, demand, source)
		if err != nil {
			return d, err
		}
		d, outcome, err := f.decide(ctx, id, demand, c)
		f.letGo(c, demand)
		if errors.Is(err, errTaken) {
			continue
		}
		if err == nil {
			f.metrics.decided(outcome)
			f.shared.use(func(b *board) { _, err = b.apply(d, time.Now()) }) // the feed brings it again
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

// choice is a decision before the transaction has checked it.
type choice struct {
	id          cluster.ManagementClusterID
	name        cluster.ManagementCluster // of the management cluster; "" when none has room
	explanation Explanation
	message     string
	held        bool
}

// choiceSource says which amounts a choice is made from.
type choiceSource uint8

const (
	fromBoard    choiceSource = iota // memory, which may be behind; the database when no cluster there has room
	fromDatabase                     // the database's present amounts
)

// choice chooses a management cluster for a demand.
func (f *Fleet) choice(ctx context.Context, d Demand, source choiceSource) (c choice, err error) {
	if source == fromBoard {
		var hosts []ManagementCluster // the board replaces their amounts, it never changes them
		f.shared.use(func(b *board) {
			hosts = b.hosts(time.Now())
			if i := choose(d, hosts); i >= 0 {
				c = choice{id: hosts[i].ID, name: hosts[i].Name, held: true}
				b.hold(c.id, d.Amounts, 1)
			}
		})
		if c.id != "" {
			c.explanation = explain(d, hosts)
			return c, nil
		}
	}
	hosts, err := f.current(ctx)
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

func (f *Fleet) letGo(c choice, d Demand) {
	if c.held {
		f.shared.use(func(b *board) { b.hold(c.id, d.Amounts, -1) })
	}
}

// decide writes a choice if it still holds.
func (f *Fleet) decide(ctx context.Context, id cluster.ID, demand Demand, c choice) (d store.Document, outcome string,
	err error) {
	if c.id != "" {
		// Placements that wait for the same management cluster hold no connection.
		end, err := f.store.WaitTurn(ctx, kindMC, string(c.id))
		if err != nil {
			return d, "", err
		}
		defer end()
	}
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		d, outcome, err = f.write(ctx, tx, id, demand, c)
		return err
	})
	return d, outcome, err
}

// write locks the cluster, its placement, the management cluster and its sum, in this order, checks the
// choice and writes it.
func (f *Fleet) write(ctx context.Context, tx *store.Tx, id cluster.ID, demand Demand, c choice) (d store.Document,
	outcome string, err error) {
	cluster, err := tx.GetForUpdate(ctx, kindCluster, string(id))
	if err := placeable(id, cluster, err); err != nil {
		return d, "", err
	}
	if fresh, err := f.demand(cluster); err != nil || !reflect.DeepEqual(fresh, demand) {
		return d, "", errors.Join(err, errTaken)
	}
	d, err = tx.GetForUpdate(ctx, KindPlacement, placementID(id))
	there := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, "", err
	}
	var have placement
	if there {
		if have, err = placementOf(d); err != nil || have.State != api.Waiting {
			return d, outcomeKept, err
		}
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	next := placement{placementWanted: placementWanted{ClusterID: id, Demand: demand}}
	next.State, next.DecidedTime, next.Explanation = api.Waiting, now, c.explanation
	if outcome = outcomeWaiting; c.id != "" {
		outcome, next.State, next.ManagementCluster, next.ManagementClusterID = outcomePlaced, api.Placed, c.name, c.id
		if err := f.reserve(ctx, tx, c.id, demand, now); err != nil {
			return d, "", err
		}
	} else {
		next.Message = c.message
		if there && have.Message == next.Message && reflect.DeepEqual(have.Explanation, next.Explanation) {
			next.DecidedTime = have.DecidedTime // equal content makes no version and wakes nobody
		}
	}
	if there {
		d, _, err = tx.Update(ctx, KindPlacement, placementID(id), 0, func(d *store.Document) error {
			return next.into(d)
		})
		return d, outcome, err
	}
	d = store.Document{Kind: KindPlacement, ID: placementID(id), CreatedAt: now}
	if err := next.into(&d); err != nil {
		return d, "", err
	}
	d, err = tx.Create(ctx, d)
	return d, outcome, err
}

// reserve adds to the sum of a management cluster, which stays locked until the transaction ends. The
// error is errTaken when the cluster does not fit any more.
func (f *Fleet) reserve(ctx context.Context, tx *store.Tx, id cluster.ManagementClusterID, d Demand,
	now time.Time) error {
	doc, err := tx.GetForUpdate(ctx, kindMC, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return errTaken
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
		return errTaken
	}
	m.add(d.Amounts, 1)
	return setSum(ctx, tx, id, sum{m.Placements, m.Reserved})
}

// host returns a management cluster from its document, with the board's state of its agent.
func (f *Fleet) host(d store.Document, now time.Time) ManagementCluster {
	r, moved := read(d), now
	f.shared.use(func(b *board) {
		if have, ok := b.mcs[cluster.ManagementClusterID(d.ID)]; ok && have.reportTime().Equal(r.reportTime()) {
			moved = have.moved
		}
	})
	return r.at(now, moved)
}

// current returns all management clusters from the database, with the database's sums. It reads only the
// documents whose versions the board does not have.
func (f *Fleet) current(ctx context.Context) (hosts []ManagementCluster, err error) {
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
		var news []string
		f.shared.use(func(b *board) {
			for id, version := range versions {
				if m, ok := b.mcs[cluster.ManagementClusterID(id)]; ok && m.doc.Version == version {
					hosts = append(hosts, m.at(now, m.moved))
				} else {
					news = append(news, id)
				}
			}
		})
		if len(news) > manyNews {
			docs, err := tx.ListScope(ctx, kindMC, "")
			if err != nil {
				return err
			}
			hosts, news = hosts[:0], nil
			for _, d := range docs {
				hosts = append(hosts, f.host(d, now))
			}
		}
		for _, id := range news {
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

// manyNews is the number of changed management clusters from which all are read at once.
const manyNews = 50

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

// release removes a cluster's placement, if there is one, and its reservation. admits checks the cluster,
// if it exists, and the placement, both of which stay locked until the transaction ends. why, unless "",
// goes into the cluster's history.
func (f *Fleet) release(ctx context.Context, id cluster.ID, why string, admits func(cluster *store.Document,
	p placement) error) (
	released bool, err error) {
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		released = false
		d, err := tx.GetForUpdate(ctx, KindPlacement, placementID(id))
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
		if c, err := tx.Get(ctx, kindCluster, string(id)); err == nil {
			cluster = &c
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err := admits(cluster, p); err != nil {
			return err
		}
		if p.State != api.Waiting {
			s, err := lockSum(ctx, tx, p.ManagementClusterID)
			if err != nil {
				return err
			}
			if err := setSum(ctx, tx, p.ManagementClusterID, sum{s.placements - 1, plus(s.reserved, p.Demand.Amounts,
				-1)}); err != nil {
				return err
			}
		}
		if why != "" {
			note, err := json.Marshal(map[string]string{"reason": why, "management_cluster": string(p.ManagementCluster)})
			if err != nil {
				return err
			}
			if err := tx.Record(ctx, actionFreed, kindCluster, string(id), "", note); err != nil {
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
