package clmclient

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"atoll.dev/api/fleet"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

const (
	clusters           Collection = "clusters"
	ManagementClusters Collection = "managementclusters"
)

// Place chooses a management cluster for a cluster and reserves capacity there. A placed cluster keeps its management
// cluster; for a cluster without a placement Place tries again.
func (c *Client) Place(ctx context.Context, cluster cluster.ID) (p fleet.Placement, err error) {
	// With the key, the client may send the request twice.
	header := http.Header{"Idempotency-Key": {string(cluster)}}
	return p, c.doInto(ctx, remote.Request{Method: http.MethodPost, Path: clusters.path(string(cluster), "placement"),
		Header: header},
		&p)
}

// Resize changes the room that a placed cluster reserves on its management cluster to the room of a size. When the
// management cluster has not that much, the reservation stays, and the returned placement has the size as WantedSize.
func (c *Client) Resize(ctx context.Context, cluster cluster.ID, size cluster.Size) (p fleet.Placement, err error) {
	body, err := json.Marshal(fleet.PlacementOrder{Size: fleet.PlaneSize(size)})
	if err != nil {
		return p, err
	}
	return p, c.doInto(ctx, remote.Request{Method: http.MethodPost, Path: clusters.path(string(cluster), "placement"),
		Body: body, Header: http.Header{"Content-Type": {"application/json"}}}, &p)
}

// Placement returns the management cluster of a cluster, or why the cluster waits for one. The error
// has status 404 when nobody has called Place for the cluster.
func (c *Client) Placement(ctx context.Context, cluster cluster.ID) (p fleet.Placement, err error) {
	return p, c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: clusters.path(string(cluster), "placement")}, &p)
}

// MoveReport returns the last state of a move that the management cluster of a cluster's placement has reported; a zero
// ID when there was none.
func (c *Client) MoveReport(ctx context.Context, id cluster.ID) (cluster.MoveData, error) {
	r, err := c.GetWithStatuses(ctx, clusters, string(id))
	return cluster.Reports(r.Statuses).HostedCluster().MoveReport(), err
}

// Move makes a step of a cluster's move to another management cluster. The client may send an order with an id twice.
func (c *Client) Move(ctx context.Context, cluster cluster.ID, o fleet.MoveOrder) (p fleet.Placement, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return p, err
	}
	return p, c.doInto(ctx, remote.Request{Method: http.MethodPost, Path: clusters.path(string(cluster), "placement",
		"move"), Body: body, Header: http.Header{"Content-Type": {"application/json"}}}, &p)
}

// PlacedOn returns the ids of the clusters whose planes run on a management cluster, in order.
func (c *Client) PlacedOn(ctx context.Context, managementCluster cluster.ManagementCluster) (ids []cluster.ID,
	err error) {
	var list fleet.PlacedClusters
	err = c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path("placements"),
		Query: url.Values{"management_cluster": {string(managementCluster)}}}, &list)
	for _, id := range list.Items {
		ids = append(ids, cluster.ID(id))
	}
	return ids, err
}

// PlanRebalance returns at most limit moves that would even out the use of management clusters, without those of the
// clusters that stay. It starts none: see Move.
func (c *Client) PlanRebalance(ctx context.Context, limit int, stay []cluster.ID) (p fleet.RebalancePlan, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for _, id := range stay {
		query.Add("except", string(id))
	}
	return p, c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path("rebalance"),
		Query: query}, &p)
}

// Release ends the reservation of a cluster's placement, if there is one. The error has status 409 while a placed
// cluster is not being deleted, and for a cluster that an operator has removed by force: see ReleaseByForce.
func (c *Client) Release(ctx context.Context, cluster cluster.ID) error {
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: clusters.path(string(cluster),
		"placement")})
	return err
}

// ReleaseByForce ends the reservation of a cluster that an operator has removed by force, without the confirmation of
// its management cluster. The history keeps the reason.
func (c *Client) ReleaseByForce(ctx context.Context, cluster cluster.ID, reason string) error {
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: clusters.path(string(cluster),
		"placement"),
		Query: url.Values{"reason": {reason}}})
	return err
}

// Orphans returns the works, hosted clusters and reservations without an owner of a management
// cluster, or of all when its name is "", the oldest first.
func (c *Client) Orphans(ctx context.Context, managementCluster cluster.ManagementCluster) ([]fleet.Orphan, error) {
	q := url.Values{}
	if managementCluster != "" {
		q.Set("management_cluster", string(managementCluster))
	}
	var list fleet.OrphanList
	err := c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path("orphans"), Query: q},
		&list)
	return list.Items, err
}

// DeleteOrphan orders a management cluster to delete an orphan. id is the orphan's, or that of the
// deleted cluster. The history keeps the reason.
func (c *Client) DeleteOrphan(ctx context.Context, managementCluster cluster.ManagementCluster,
	id, reason string) error {
	q := url.Values{"management_cluster": {string(managementCluster)}, "reason": {reason}}
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: ManagementClusters.path("orphans", id),
		Query: q})
	return err
}

// Usage returns the reserved and free capacity of all management clusters, ordered by name.
func (c *Client) Usage(ctx context.Context) ([]fleet.Usage, error) {
	var list fleet.UsageList
	err := c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path("usage")}, &list)
	return list.Items, err
}

// UsageOf returns the reserved and free capacity of one management cluster by its id.
func (c *Client) UsageOf(ctx context.Context, id cluster.ManagementClusterID) (u fleet.Usage, err error) {
	return u, c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path(string(id), "usage")}, &u)
}
