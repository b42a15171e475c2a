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

// NodePool is a node pool with the entity tag that it had when it was read.
type NodePool struct {
	platform.NodePool
	ETag string `json:"-"`
}

// CreateNodePool makes a node pool in a cluster. A name that is taken there is
// 409; a spec that is not right is 422 with Error.Fields. A call whose answer
// is lost is repeated and makes one node pool.
func (p *Client) CreateNodePool(ctx context.Context, r platform.NodePoolRequest) (NodePool, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return NodePool{}, fmt.Errorf("the node pool: %w", err)
	}
	return p.nodePool(ctx, remote.Request{Method: http.MethodPost, Path: pathNodePools, Header: onceOnly(), Body: body})
}

// NodePool returns one node pool.
func (p *Client) NodePool(ctx context.Context, id string) (NodePool, error) {
	return p.nodePool(ctx, remote.Request{Method: http.MethodGet, Path: below(pathNodePools, id)})
}

// NodePoolQuery selects node pools of the caller's account. Empty members
// select all.
type NodePoolQuery struct {
	Cluster string // id
	Name    string
	Phase   platform.NodePoolPhase
}

// NodePools returns all node pools that a query selects, the oldest first.
func (p *Client) NodePools(ctx context.Context, q NodePoolQuery) ([]platform.NodePool, error) {
	v := url.Values{}
	remote.SetQuery(v, "clusterId", q.Cluster)
	remote.SetQuery(v, "name", q.Name)
	remote.SetQuery(v, "status", string(q.Phase))
	return sliced(ctx, func(ctx context.Context, limit, offset int) ([]platform.NodePool, error) {
		var list platform.NodePoolList
		err := p.list(ctx, pathNodePools, v, limit, offset, &list)
		return list.Items, err
	})
}

// UpdateNodePool applies a JSON merge patch, such as {"spec":{"replicas":3}}.
// With an etag it is refused with 412 when the node pool has another by now.
func (p *Client) UpdateNodePool(ctx context.Context, id string, patch json.RawMessage, etag string) (NodePool,
	error) {
	return p.nodePool(ctx, remote.Request{Method: http.MethodPatch, Path: below(pathNodePools, id),
		Header: remote.MergePatch(etag),
		Body:   patch})
}

// DeleteNodePool asks for the deletion of a node pool. It is gone when
// NodePool says 404.
func (p *Client) DeleteNodePool(ctx context.Context, id, etag string) error {
	_, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: below(pathNodePools, id),
		Header: remote.IfMatch(etag)})
	return err
}

// NodePoolStatuses returns what the region's controllers report of a node
// pool.
func (p *Client) NodePoolStatuses(ctx context.Context, id string) (platform.NodePoolStatuses, error) {
	var s platform.NodePoolStatuses
	err := p.get(ctx, below(pathNodePools, id)+"/status", nil, &s)
	return s, err
}

// WatchNodePools opens one stream of changes of the node pools of a cluster,
// or of all of the account when cluster is empty. Its objects are
// platform.NodePools.
func (p *Client) WatchNodePools(ctx context.Context, cluster string, o remote.WatchOptions) (*remote.Watch, error) {
	q := o.Values()
	remote.SetQuery(q, "clusterId", cluster)
	return p.http.WatchQuery(ctx, pathNodePools, q)
}

// FollowNodePools calls apply with every event until ctx ends or apply fails,
// and returns why, as FollowBundles does.
func (p *Client) FollowNodePools(ctx context.Context, cluster string, o remote.WatchOptions,
	apply func(remote.Event) error) error {
	return remote.Follow(ctx, o, func(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
		return p.WatchNodePools(
			ctx, cluster, o)
	}, apply)
}

func (p *Client) nodePool(ctx context.Context, r remote.Request) (NodePool, error) {
	doc, _, err := p.http.Do(ctx, r)
	if err != nil {
		return NodePool{}, err
	}
	n := NodePool{ETag: doc.ETag}
	err = decode(doc, &n.NodePool)
	return n, err
}
