package rosa

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/front/rosa/request"
	"atoll.dev/internal/rest"
)

// Identify implements access.Resources. A request that creates a cluster is about a cluster without
// an id and with the tags of the body; one that creates a node pool is about the cluster that the
// body names. Both are read as the handlers read them.
func (f *front) Identify(r *http.Request, caller access.Identity, route access.Route) policy.Resource {
	account := string(caller.Account)
	if other := r.URL.Query()[administer.Parameter]; len(other) > 0 && isAdministered(route.Path) {
		account = other[0]
	}
	of := access.ResourceOf(route, r.PathValue(route.ID), cluster.Account(account))
	switch {
	case route.Action == "CreateCluster":
		of.Tags = tagsOf(document.Decode(copyBody(r)))
	case route.Action == "CreateNodePool":
		of.ID = string(request.ReadClusterID(copyBody(r)))
	case of.Kind == policy.Credential:
		of.Cluster = r.PathValue("id")
	}
	return of
}

// copyBody returns the body of a request, which is in memory, and leaves it to the handler.
func copyBody(r *http.Request) []byte {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), r.Body))
	if err != nil || len(body) > maxBody {
		return nil // the handler refuses it
	}
	return body
}

// tagsOf returns the tags of the body of a request for a cluster.
func tagsOf(body any, err error) map[string]string {
	tags, isObject := document.Lookup(body, "spec", "tags").(map[string]any)
	if err != nil || !isObject {
		return nil
	}
	found := make(map[string]string, len(tags))
	for k, v := range tags {
		if text, isText := v.(string); isText {
			found[k] = text
		}
	}
	return found
}

// specTags returns the tags of a stored cluster.
func specTags(spec json.RawMessage) map[string]string {
	var s struct {
		Tags map[string]string `json:"tags"`
	}
	_ = json.Unmarshal(spec, &s) // a spec that cannot be read has none; the handler reports it
	return s.Tags
}

// Complete implements access.Resources: it reads the cluster of a node pool and the tags of a cluster.
func (f *front) Complete(ctx context.Context, caller access.Identity, of policy.Resource) (policy.Resource, error) {
	h := f.customers
	if h.clm == nil {
		return of, lifecycleUnavailable()
	}
	ctx = clmclient.WithTenant(ctx, caller.Account)
	read := func(from clmclient.Collection, id string) (clmclient.Resource, bool, error) {
		if !isID(id) {
			return clmclient.Resource{}, false, nil
		}
		r, err := h.cache.GetWithStatuses(ctx, from, id)
		switch {
		case remote.StatusOf(err) == http.StatusNotFound:
			return r, false, nil
		case err != nil:
			return r, false, lifecycleUnavailable().Because(err)
		}
		keepReadAhead(ctx, from, r)
		return r, true, nil
	}
	id := of.ID
	switch of.Kind {
	case policy.NodePool:
		pool, exists, err := read(nodePools, of.ID)
		if err != nil || !exists {
			return of, err
		}
		of.Cluster = string(ownerOf(pool))
		id = of.Cluster
	case policy.Credential:
		id = of.Cluster
	case policy.Cluster:
		if of.ID == "" {
			return of, nil // to be created
		}
	default:
		return of, nil
	}
	owner, exists, err := read(clusters, id)
	if exists {
		of.Tags = specTags(owner.Spec)
	}
	return of, err
}

func lifecycleUnavailable() *rest.Error {
	e := rest.Errorf(http.StatusServiceUnavailable, codeNoLifecycle,
		"the region's lifecycle manager does not answer; try again")
	e.RetryAfter = time.Second
	return e
}

// readAhead has the resources that the decision about a request has read, for its handler: a request with a
// condition on tags reads its resource once.
type readAhead struct {
	mu   sync.Mutex
	read map[string]clmclient.Resource // by collection and id
}

type readAheadKey struct{}

// withReadAhead gives each request that reads a readAhead. One that changes something answers with the
// document after the change, and decides on the document that it changes (checkChange).
func withReadAhead(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.ServeHTTP(w, r)
			return
		}
		ahead := &readAhead{read: map[string]clmclient.Resource{}}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), readAheadKey{}, ahead)))
	})
}

// keepReadAhead keeps a resource for the handler of the request.
func keepReadAhead(ctx context.Context, from clmclient.Collection, r clmclient.Resource) {
	if ahead, ok := ctx.Value(readAheadKey{}).(*readAhead); ok {
		ahead.mu.Lock()
		defer ahead.mu.Unlock()
		ahead.read[string(from)+"/"+r.ID] = r
	}
}

// takeReadAhead returns a resource that the decision has read, once.
func takeReadAhead(ctx context.Context, from clmclient.Collection, id string) (r clmclient.Resource, ok bool) {
	ahead, isThere := ctx.Value(readAheadKey{}).(*readAhead)
	if !isThere {
		return r, false
	}
	ahead.mu.Lock()
	defer ahead.mu.Unlock()
	r, ok = ahead.read[string(from)+"/"+id]
	clear(ahead.read)
	return r, ok
}

// clusterResource returns a cluster as decisions are about it.
func (c *exchange) clusterResource(r clmclient.Resource) policy.Resource {
	return policy.Resource{Kind: policy.Cluster, ID: r.ID, Account: c.caller.Account, Tags: specTags(r.Spec)}
}

// mayDescribeCluster decides about an item of a list of clusters.
func (h *customerAPI) mayDescribeCluster(c *exchange, r clmclient.Resource) (bool, error) {
	return c.allows("DescribeCluster", c.clusterResource(r))
}

// mayDescribeNodePool decides about an item of a list of node pools.
func (h *customerAPI) mayDescribeNodePool(c *exchange, r clmclient.Resource) (bool, error) {
	owner := string(ownerOf(r))
	tags, known := c.tags[owner]
	if !known {
		of, err := h.clm.Get(c.ctx, clusters, owner, "")
		if err != nil && remote.StatusOf(err) != http.StatusNotFound {
			return false, err
		}
		if tags = specTags(of.Spec); c.tags == nil {
			c.tags = map[string]map[string]string{}
		}
		c.tags[owner] = tags
	}
	return c.allows("DescribeNodePool", policy.Resource{Kind: policy.NodePool, ID: r.ID,
		Account: c.caller.Account, Cluster: owner, Tags: tags})
}

// allows reports whether the caller may take an action on a resource. The error is one of the server.
func (c *exchange) allows(action access.Action, on policy.Resource) (bool, error) {
	err := access.AuthorityFrom(c.r.Context()).Check(c.r.Context(), action, on)
	if e, ok := err.(*rest.Error); ok && e.Status == http.StatusForbidden {
		return false, nil
	}
	return err == nil, err
}

// checkChange decides on a change again, on the document that it changes: its tags may have changed
// since the decision about the request. owner is the cluster whose tags count. The change must fail
// when the document has another version than have.
func (c *exchange) checkChange(action access.Action, on policy.Kind, have, owner clmclient.Resource) error {
	of := c.clusterResource(owner)
	if of.Kind = on; on != policy.Cluster {
		of.ID, of.Cluster = have.ID, owner.ID
	}
	return access.AuthorityFrom(c.r.Context()).Check(c.r.Context(), action, of)
}

// checkTags refuses a change of a cluster's tags by a caller who may not tag it, as it is and as it
// would be: policies depend on tags.
func (c *exchange) checkTags(have clmclient.Resource, after json.RawMessage) error {
	before, next := specTags(have.Spec), specTags(after)
	same := len(before) == len(next)
	for k, v := range before {
		other, has := next[k]
		same = same && has && other == v
	}
	if same {
		return nil
	}
	of := c.clusterResource(have)
	for _, tags := range []map[string]string{before, next} {
		of.Tags = tags
		if err := access.AuthorityFrom(c.r.Context()).Check(c.r.Context(), "TagCluster", of); err != nil {
			return err
		}
	}
	return nil
}

var _ access.Resources = (*front)(nil)

// cluster reads a cluster with its reports.
func (h *customerAPI) cluster(c *exchange, id cluster.ID) (clmclient.Resource, error) {
	if r, ok := takeReadAhead(c.ctx, clusters, string(id)); ok {
		return r, nil
	}
	r, err := h.cache.GetWithStatuses(c.ctx, clusters, string(id))
	return r, replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, string(id)))
}
