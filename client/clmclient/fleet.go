package clmclient

import (
	"context"
	"net/http"
	"net/url"

	"atoll.dev/api/fleet"
	"atoll.dev/client/remote"
)

const (
	clusters           Collection = "clusters"
	ManagementClusters Collection = "managementclusters"
)

// Place places a cluster, or tries again; one that is placed stays where it is.
func (c *Client) Place(ctx context.Context, cluster string) (p fleet.Placement, err error) {
	// It may be sent twice, so it says so.
	header := http.Header{"Idempotency-Key": {cluster}}
	return p, c.into(ctx, remote.Request{Method: http.MethodPost, Path: clusters.path(cluster, "placement"),
		Header: header},
		&p)
}

// Placement says where a cluster is placed, or why it waits; 404 when it was
// never to be placed.
func (c *Client) Placement(ctx context.Context, cluster string) (p fleet.Placement, err error) {
	return p, c.into(ctx, remote.Request{Method: http.MethodGet, Path: clusters.path(cluster, "placement")}, &p)
}

// Release gives back what a cluster's placement reserves, if it has one.
func (c *Client) Release(ctx context.Context, cluster string) error {
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: clusters.path(cluster, "placement")})
	return err
}

// Free gives back what a cluster that was removed by force reserves, without its
// management cluster's word. The reason is for the record.
func (c *Client) Free(ctx context.Context, cluster, reason string) error {
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: clusters.path(cluster, "placement"),
		Query: url.Values{"reason": {reason}}})
	return err
}

// Orphans are what runs, or holds room, on a management cluster (by name; "":
// all) without an owner, the oldest first.
func (c *Client) Orphans(ctx context.Context, managementCluster string) ([]fleet.Orphan, error) {
	q := url.Values{}
	if managementCluster != "" {
		q.Set("management_cluster", managementCluster)
	}
	var list fleet.OrphanList
	err := c.into(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path("orphans"), Query: q},
		&list)
	return list.Items, err
}

// EndOrphan has a management cluster delete an orphan, by its id or by that of
// the cluster that is gone. The reason is for the record.
func (c *Client) EndOrphan(ctx context.Context, managementCluster, id, reason string) error {
	q := url.Values{"management_cluster": {managementCluster}, "reason": {reason}}
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: ManagementClusters.path("orphans", id),
		Query: q})
	return err
}

// Usage is what management clusters have reserved and free, by their names.
func (c *Client) Usage(ctx context.Context) ([]fleet.Usage, error) {
	var list fleet.UsageList
	err := c.into(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path("usage")}, &list)
	return list.Items, err
}

// UsageOf is what one management cluster, by its id, has reserved and free.
func (c *Client) UsageOf(ctx context.Context, id string) (u fleet.Usage, err error) {
	return u, c.into(ctx, remote.Request{Method: http.MethodGet, Path: ManagementClusters.path(id, "usage")}, &u)
}
