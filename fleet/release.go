package fleet

import (
	"context"
	"encoding/json"
	"errors"

	"atoll.dev/cluster"
	"atoll.dev/store"
)

// release removes a cluster's placement, if there is one, and its reservation. It returns false if there is none.
// admits checks the cluster (nil: it does not exist) and the placement, which stay locked until the transaction
// ends; its error ends the release. why, unless "", goes into the cluster's history.
func (f *Fleet) release(ctx context.Context, id cluster.ID, why string, admits func(cluster *store.Document,
	p placement) error) (released bool, err error) {
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
		for _, mc := range p.reservedOn() {
			if err := free(ctx, tx, mc, p.Demand.Amounts); err != nil {
				return err
			}
		}
		if why != "" {
			note, err := json.Marshal(map[string]string{"reason": why, "management_cluster": string(p.ManagementCluster)})
			if err != nil {
				return err
			}
			if err := tx.Record(ctx, actionFreeRoom, kindCluster, string(id), "", note); err != nil {
				return err
			}
		}
		released = true
		return tx.Remove(ctx, KindPlacement, d.ID, 0)
	})
	if err == nil && released {
		f.metrics.countOutcome(outcomeReleased)
	}
	return released && err == nil, err
}

// free subtracts the amounts of one placement from the sum of a management cluster, which stays locked until the
// transaction ends.
func free(ctx context.Context, tx *store.Tx, mc cluster.ManagementClusterID, amounts Amounts) error {
	s, err := lockSum(ctx, tx, mc)
	if err != nil {
		return err
	}
	return setSum(ctx, tx, mc, sum{s.placements - 1, plus(s.reserved, amounts, -1)})
}
