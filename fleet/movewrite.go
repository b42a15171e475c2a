package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/store"
)

// followingKinds are the kinds of a cluster's parts that go where its control plane has gone.
var followingKinds = []store.Kind{"NodePool", "Credential"}

// actionMove is the action of a move's steps in the history of a cluster.
const actionMove = "move"

// writeMove writes a placement whose move has changed, records the step in the cluster's history and requests work for
// the cluster.
func (f *Fleet) writeMove(ctx context.Context, tx *store.Tx, p placement, step api.MoveStep, now time.Time) (
	d store.Document, err error) {
	d, _, err = tx.Update(ctx, KindPlacement, placementID(p.ClusterID), 0, func(d *store.Document) error {
		return p.encodeInto(d)
	})
	if err != nil {
		return d, err
	}
	note, err := json.Marshal(map[string]string{"move": p.Move.ID, "step": string(step), "phase": string(p.Move.Phase),
		"from": string(p.Move.From), "to": string(p.Move.To)})
	if err != nil {
		return d, err
	}
	if err := tx.Record(ctx, actionMove, kindCluster, string(p.ClusterID), "", note); err != nil {
		return d, err
	}
	e := entryWithID{d.ID, placementEntry{version: d.Version, cluster: p.ClusterID, mc: p.ManagementClusterID}}
	reason := fmt.Sprintf("the move of the control plane is %s", p.Move.Phase)
	// Only with these two steps the plane's management cluster changes, and the cluster's parts must follow.
	if err := writeRequest(ctx, tx, e, now, reason); err != nil || step != api.Arrived && step != api.Recover {
		return d, err
	}
	for _, kind := range followingKinds {
		parts, err := tx.ListScope(ctx, kind, string(p.ClusterID))
		if err != nil {
			return d, err
		}
		for _, part := range parts {
			if err := requestWork(ctx, tx, part, e, now, reason); err != nil {
				return d, err
			}
		}
	}
	return d, nil
}

// applyPlacement adds a committed placement to the inventory. If err is not nil, it changes nothing and returns err.
func (f *Fleet) applyPlacement(d store.Document, err error) (store.Document, error) {
	if err == nil {
		f.shared.use(func(inv *inventory) { _, err = inv.apply(d, time.Now()) })
	}
	return d, err
}
