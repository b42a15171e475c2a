package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

// NodePool is a node pool with the ETag of the answer that it was read from.
type NodePool struct {
	platform.NodePool
	ETag string `json:"-"`
}

// CreateNodePool creates a node pool of a cluster. The error has status 409 when another node pool of
// the cluster has the name, and 422 with Error.Fields when the spec is invalid. A retry after a lost
// answer creates no second node pool.
func (p *Client) CreateNodePool(ctx context.Context, r platform.NodePoolRequest) (NodePool, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return NodePool{}, fmt.Errorf("the node pool: %w", err)
	}
	return p.sendForNodePool(ctx, remote.Request{Method: http.MethodPost, Path: pathNodePools, Header: idempotencyKey(),
		Body: body})
}

// NodePool returns one node pool.
func (p *Client) NodePool(ctx context.Context, id NodePoolID) (NodePool, error) {
	return p.sendForNodePool(ctx, remote.Request{Method: http.MethodGet, Path: pathOf(pathNodePools, string(id))})
}

// NodePoolQuery selects node pools of the caller's account. An empty member selects all.
type NodePoolQuery struct {
	Cluster ClusterID
	Name    string
	Phase   platform.NodePoolPhase
}

// NodePools returns all node pools that a query selects, the oldest first.
func (p *Client) NodePools(ctx context.Context, q NodePoolQuery) ([]platform.NodePool, error) {
	v := url.Values{}
	remote.SetNonEmpty(v, "clusterId", string(q.Cluster))
	remote.SetNonEmpty(v, "name", q.Name)
	remote.SetNonEmpty(v, "status", string(q.Phase))
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.NodePool, error) {
		var list platform.NodePoolList
		err := p.list(ctx, pathNodePools, v, limit, offset, &list)
		return list.Items, err
	})
}

// UpdateNodePool applies a JSON merge patch, such as {"spec":{"replicas":3}}. With an etag, the error
// has status 412 when the node pool has changed since.
func (p *Client) UpdateNodePool(ctx context.Context, id NodePoolID, patch json.RawMessage, etag string) (NodePool,
	error) {
	return p.sendForNodePool(ctx, remote.Request{Method: http.MethodPatch, Path: pathOf(pathNodePools, string(id)),
		Header: remote.MergePatchHeader(etag),
		Body:   patch})
}

// DeleteNodePool requests the deletion of a node pool. The deletion is complete when NodePool returns
// an error with status 404.
func (p *Client) DeleteNodePool(ctx context.Context, id NodePoolID, etag string) error {
	_, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: pathOf(pathNodePools, string(id)),
		Header: remote.IfMatchHeader(etag)})
	return err
}

// NodePoolStatuses returns the reports of the region's adapters about a node pool.
func (p *Client) NodePoolStatuses(ctx context.Context, id NodePoolID) (platform.NodePoolStatuses, error) {
	var s platform.NodePoolStatuses
	err := p.get(ctx, pathOf(pathNodePools, string(id))+"/status", nil, &s)
	return s, err
}

// WatchNodePools opens one stream of changes of the node pools of a cluster, or of the account when
// cluster is empty. The objects of its events are platform.NodePools.
func (p *Client) WatchNodePools(ctx context.Context, cluster ClusterID, o remote.WatchOptions) (*remote.Watch, error) {
	q := o.Values()
	remote.SetNonEmpty(q, "clusterId", string(cluster))
	return p.http.WatchQuery(ctx, pathNodePools, q)
}

// FollowNodePools calls apply with every event of WatchNodePools, across broken streams, as
// FollowBundles does.
func (p *Client) FollowNodePools(ctx context.Context, cluster ClusterID, o remote.WatchOptions,
	apply func(remote.Event) error) error {
	return remote.Follow(ctx, o, func(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
		return p.WatchNodePools(ctx, cluster, o)
	}, apply)
}

// sendForNodePool sends a request whose answer is a node pool.
func (p *Client) sendForNodePool(ctx context.Context, r remote.Request) (NodePool, error) {
	doc, _, err := p.http.Do(ctx, r)
	if err != nil {
		return NodePool{}, err
	}
	n := NodePool{ETag: doc.ETag}
	err = decode(doc, &n.NodePool)
	return n, err
}
