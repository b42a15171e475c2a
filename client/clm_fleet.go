package client

import (
	"context"
	"net/http"
	"net/url"

	"atoll.dev/api/fleet"
)

const (
	clusters           Collection = "clusters"
	managementClusters Collection = "managementclusters"
)

// Place places a cluster, or tries again; one that is placed stays where it is.
func (c *CLM) Place(ctx context.Context, cluster string) (p fleet.Placement, err error) {
	// It may be sent twice, so it says so.
	header := http.Header{"Idempotency-Key": {cluster}}
	return p, c.into(ctx, request{method: http.MethodPost, path: clusters.path(cluster, "placement"), header: header},
		&p)
}

// Placement says where a cluster is placed, or why it waits; 404 when it was
// never to be placed.
func (c *CLM) Placement(ctx context.Context, cluster string) (p fleet.Placement, err error) {
	return p, c.into(ctx, request{method: http.MethodGet, path: clusters.path(cluster, "placement")}, &p)
}

// Release gives back what a cluster's placement reserves, if it has one.
func (c *CLM) Release(ctx context.Context, cluster string) error {
	_, _, err := c.http.do(ctx, request{method: http.MethodDelete, path: clusters.path(cluster, "placement")})
	return err
}

// Free gives back what a cluster that was removed by force reserves, without its
// management cluster's word. The reason is for the record.
func (c *CLM) Free(ctx context.Context, cluster, reason string) error {
	_, _, err := c.http.do(ctx, request{method: http.MethodDelete, path: clusters.path(cluster, "placement"),
		query: url.Values{"reason": {reason}}})
	return err
}

// Orphans are what runs, or holds room, on a management cluster (by name; "":
// all) without an owner, the oldest first.
func (c *CLM) Orphans(ctx context.Context, managementCluster string) ([]fleet.Orphan, error) {
	q := url.Values{}
	if managementCluster != "" {
		q.Set("management_cluster", managementCluster)
	}
	var list fleet.OrphanList
	err := c.into(ctx, request{method: http.MethodGet, path: managementClusters.path("orphans"), query: q}, &list)
	return list.Items, err
}

// EndOrphan has a management cluster delete an orphan, by its id or by that of
// the cluster that is gone. The reason is for the record.
func (c *CLM) EndOrphan(ctx context.Context, managementCluster, id, reason string) error {
	q := url.Values{"management_cluster": {managementCluster}, "reason": {reason}}
	_, _, err := c.http.do(ctx, request{method: http.MethodDelete, path: managementClusters.path("orphans", id),
		query: q})
	return err
}

// Usage is what management clusters have reserved and free, by their names.
func (c *CLM) Usage(ctx context.Context) ([]fleet.Usage, error) {
	var list fleet.UsageList
	err := c.into(ctx, request{method: http.MethodGet, path: managementClusters.path("usage")}, &list)
	return list.Items, err
}

// UsageOf is what one management cluster, by its id, has reserved and free.
func (c *CLM) UsageOf(ctx context.Context, id string) (u fleet.Usage, err error) {
	return u, c.into(ctx, request{method: http.MethodGet, path: managementClusters.path(id, "usage")}, &u)
}
