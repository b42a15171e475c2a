package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"atoll.dev/api/platform"
)

// NodePool is a node pool with the entity tag that it had when it was read.
type NodePool struct {
	platform.NodePool
	ETag string `json:"-"`
}

// CreateNodePool makes a node pool in a cluster. A name that is taken there is
// 409; a spec that is not right is 422 with Error.Fields. A call whose answer
// is lost is repeated and makes one node pool.
func (p *Platform) CreateNodePool(ctx context.Context, r platform.NodePoolRequest) (NodePool, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return NodePool{}, fmt.Errorf("the node pool: %w", err)
	}
	return p.nodePool(ctx, request{method: http.MethodPost, path: pathNodePools, header: onceOnly(), body: body})
}

// NodePool returns one node pool.
func (p *Platform) NodePool(ctx context.Context, id string) (NodePool, error) {
	return p.nodePool(ctx, request{method: http.MethodGet, path: below(pathNodePools, id)})
}

// NodePoolQuery selects node pools of the caller's account. Empty members
// select all.
type NodePoolQuery struct {
	Cluster string // id
	Name    string
	Phase   platform.NodePoolPhase
}

// NodePools returns all node pools that a query selects, the oldest first.
func (p *Platform) NodePools(ctx context.Context, q NodePoolQuery) ([]platform.NodePool, error) {
	v := url.Values{}
	set(v, "clusterId", q.Cluster)
	set(v, "name", q.Name)
	set(v, "status", string(q.Phase))
	return sliced(ctx, func(ctx context.Context, limit, offset int) ([]platform.NodePool, error) {
		var list platform.NodePoolList
		err := p.list(ctx, pathNodePools, v, limit, offset, &list)
		return list.Items, err
	})
}

// UpdateNodePool applies a JSON merge patch, such as {"spec":{"replicas":3}}.
// With an etag it is refused with 412 when the node pool has another by now.
func (p *Platform) UpdateNodePool(ctx context.Context, id string, patch json.RawMessage, etag string) (NodePool,
	error) {
	return p.nodePool(ctx, request{method: http.MethodPatch, path: below(pathNodePools, id), header: mergePatch(etag),
		body: patch})
}

// DeleteNodePool asks for the deletion of a node pool. It is gone when
// NodePool says 404.
func (p *Platform) DeleteNodePool(ctx context.Context, id, etag string) error {
	_, _, err := p.http.do(ctx, request{method: http.MethodDelete, path: below(pathNodePools, id),
		header: ifMatch(etag)})
	return err
}

// NodePoolStatuses returns what the region's controllers report of a node
// pool.
func (p *Platform) NodePoolStatuses(ctx context.Context, id string) (platform.NodePoolStatuses, error) {
	var s platform.NodePoolStatuses
	err := p.get(ctx, below(pathNodePools, id)+"/status", nil, &s)
	return s, err
}

// WatchNodePools opens one stream of changes of the node pools of a cluster,
// or of all of the account when cluster is empty. Its objects are
// platform.NodePools.
func (p *Platform) WatchNodePools(ctx context.Context, cluster string, o WatchOptions) (*Watch, error) {
	q := o.query()
	set(q, "clusterId", cluster)
	return p.http.watchQuery(ctx, pathNodePools, q)
}

// FollowNodePools calls apply with every event until ctx ends or apply fails,
// and returns why, as FollowBundles does.
func (p *Platform) FollowNodePools(ctx context.Context, cluster string, o WatchOptions, apply func(Event) error) error {
	return follow(ctx, o, func(ctx context.Context, o WatchOptions) (*Watch, error) {
		return p.WatchNodePools(
			ctx, cluster, o)
	}, apply)
}

func (p *Platform) nodePool(ctx context.Context, r request) (NodePool, error) {
	doc, _, err := p.http.do(ctx, r)
	if err != nil {
		return NodePool{}, err
	}
	n := NodePool{ETag: doc.ETag}
	err = decode(doc, &n.NodePool)
	return n, err
}
