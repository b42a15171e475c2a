package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// size returns the size class for which a placement reserves room.
func (p placement) size() cluster.Size {
	if p.Size == "" {
		return cluster.Small
	}
	return p.Size
}

// growth returns what a plane needs besides its amounts when it goes from one size to another; negative amounts when it
// becomes smaller. Its amounts are those of the size that it has: so each unit is what was reserved for this plane,
// also when the region now reserves more for new ones.
func growth(amounts Amounts, from, to cluster.Size) Amounts {
	if from == "" {
		from = cluster.Small
	}
	g := Amounts{}
	for name, n := range amounts {
		g[name] = n/from.Limits().Units*to.Limits().Units - n
	}
	return g
}

// maxOrder bounds the body of a request for a placement.
const maxOrder = 4 << 10

// readOrder reads the body of a request for a placement or a move into order, which an empty body leaves as it is.
func readOrder(r *http.Request, order any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxOrder+1))
	if err != nil {
		return err
	}
	if len(body) > maxOrder {
		return rest.Errorf(http.StatusBadRequest, codeInvalid, "the body has more than %d bytes", maxOrder)
	}
	if len(body) == 0 {
		return nil
	}
	if err := json.Unmarshal(body, order); err != nil {
		return rest.Errorf(http.StatusBadRequest, codeInvalid, "the body is no order: %v", err)
	}
	return nil
}

// resize reserves the room of a size for a placed cluster, where it is. There are three outcomes:
//  1. The room is that of the size: work is requested for the cluster when it was another before.
//  2. Its management cluster has no room: the placement has the size as its wanted one.
//  3. The cluster is not placed: nothing changes.
//
// While a move reserves room on two management clusters, any other size is a wanted one.
// A smaller size always has room. The management cluster may be cordoned or lost: the plane is there already.
func (f *Fleet) resize(ctx context.Context, id cluster.ID, size cluster.Size) (d store.Document, err error) {
	var p placement
	changed := false
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		owner, err := tx.GetForUpdate(ctx, kindCluster, string(id))
		if err := placeable(id, owner, err); err != nil {
			return err
		}
		if d, err = tx.GetForUpdate(ctx, KindPlacement, placementID(id)); err != nil {
			return err
		}
		if p, err = placementOf(d); err != nil || p.State != api.Placed {
			return err
		}
		changed = false
		if size != p.size() && len(p.reservedOn()) == 1 {
			if changed, err = f.reserveGrowth(ctx, tx, p, size); err != nil {
				return err
			}
		}
		wanted := size
		if changed {
			p.Demand.Amounts = plus(p.Demand.Amounts, growth(p.Demand.Amounts, p.Size, size), 1)
			p.Size, wanted = size, ""
		} else if size == p.size() {
			wanted = ""
		}
		if !changed && wanted == p.WantedSize {
			return nil
		}
		p.WantedSize = wanted
		d, _, err = tx.Update(ctx, KindPlacement, placementID(id), 0, func(d *store.Document) error {
			return p.encodeInto(d)
		})
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return d, rest.Errorf(http.StatusNotFound, codeNotFound, "Cluster %s has no placement", id)
	}
	if err != nil {
		return d, err
	}
	f.shared.use(func(inv *inventory) { _, err = inv.apply(d, time.Now()) })
	if err != nil || !changed {
		return d, err
	}
	e := entryWithID{d.ID, placementEntry{version: d.Version, cluster: id, mc: p.ManagementClusterID}}
	reason := fmt.Sprintf("the control plane has the room of the size %s", size)
	return d, f.writeRequests(ctx, []entryWithID{e}, time.Now(), reason)
}

// reserveGrowth changes the sum of a placement's management cluster to that of another size, and returns false when it
// has no room. The sum stays locked until the transaction ends.
func (f *Fleet) reserveGrowth(ctx context.Context, tx *store.Tx, p placement, size cluster.Size) (bool, error) {
	doc, err := tx.GetForUpdate(ctx, kindMC, string(p.ManagementClusterID))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	grows := size.Compare(p.size()) > 0
	if err != nil && grows {
		return false, nil
	}
	s, err := lockSum(ctx, tx, p.ManagementClusterID)
	if err != nil {
		return false, err
	}
	more := growth(p.Demand.Amounts, p.Size, size)
	m := decodeMC(doc).m
	m.Reserved = s.reserved
	if grows && (m.Unusable != "" || !m.hasFree(more)) {
		return false, nil
	}
	return true, setSum(ctx, tx, p.ManagementClusterID, sum{s.placements, plus(s.reserved, more, 1)})
}
