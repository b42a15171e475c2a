package rosa

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"atoll.dev/access/policy"
	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/front/rosa/request"
	"atoll.dev/internal/rest"
)

// toNodePool gives a resource, read with its reports, the shape of the wire.
func (c *exchange) toNodePool(r clmclient.Resource) (platform.NodePool, error) {
	n := platform.NodePool{
		ID: r.ID, ClusterID: string(ownerOf(r)), Name: r.Name, CreatedBy: r.CreatedBy, Account: r.Tenancy["account"],
		Generation: int64(r.Generation), ResourceVersion: fmt.Sprint(r.Version),
		Status:    nodePoolStatus(r.Resource, c.visibility),
		CreatedAt: r.CreatedTime, UpdatedAt: r.UpdatedTime, DeletedAt: r.DeletedTime,
	}
	if err := json.Unmarshal(r.Spec, &n.Spec); err != nil {
		return n, fmt.Errorf("reading the spec of node pool %s: %w", r.ID, err)
	}
	return n, nil
}

// ownerOf returns the id of the cluster that a resource belongs to.
func ownerOf(r clmclient.Resource) cluster.ID {
	if r.OwnerReferences == nil {
		return ""
	}
	return cluster.ID(r.OwnerReferences.ID)
}

// nodePool reads a node pool with its reports.
func (h *customerAPI) nodePool(c *exchange, id cluster.NodePoolID) (clmclient.Resource, error) {
	if r, ok := takeReadAhead(c.ctx, nodePools, string(id)); ok {
		return r, nil
	}
	r, err := h.cache.GetWithStatuses(c.ctx, nodePools, string(id))
	return r, replaceStatus(err, http.StatusNotFound, c.notFound(nounNodePool, string(id)))
}

// showNodePool reads a node pool and answers with it.
func (h *customerAPI) showNodePool(c *exchange, status int, id cluster.NodePoolID) error {
	r, err := h.nodePool(c, id)
	if err != nil {
		return err
	}
	return show(c, status, r, c.toNodePool)
}

// nodePoolRequests returns the reader of requests for node pools of a cluster.
func (h *customerAPI) nodePoolRequests(c *exchange, owner clmclient.Resource) (request.NodePools, error) {
	releases, err := h.releases.Releases(c.r.Context())
	if err != nil {
		return request.NodePools{}, err
	}
	read := request.NodePools{Releases: releases, Providers: h.providers}
	var s platform.ClusterSpec
	if len(owner.Spec) > 0 {
		if err := json.Unmarshal(owner.Spec, &s); err != nil {
			return read, fmt.Errorf("reading the spec of cluster %s: %w", owner.ID, err)
		}
	}
	if s.HostedCluster != nil && s.HostedCluster.Release != nil {
		read.Image = s.HostedCluster.Release.Image
	}
	return read, nil
}

// createNodePool reads the cluster first: the defaults of a node pool come from
// it.
func (h *customerAPI) createNodePool(c *exchange) error {
	body, err := c.readBody()
	if err != nil {
		return err
	}
	id := string(request.ReadClusterID(body))
	missing := c.notFound(nounCluster, string(id))
	missing.Fields = []rest.FieldError{{Field: "cluster_id", Message: "there is no such cluster in your account"}}
	var owner clmclient.Resource
	if id != "" {
		if _, err := uuid.Parse(id); err != nil {
			return missing
		}
		if owner, err = h.clm.Get(c.ctx, clusters, string(id), ""); err != nil {
			return replaceStatus(err, http.StatusNotFound, missing)
		}
	}
	read, err := h.nodePoolRequests(c, owner)
	if err != nil {
		return err
	}
	made, problems, err := read.Create(body)
	if err := c.refusal(problems, err); err != nil {
		return err
	}
	if owner.DeletedTime != nil {
		return c.errorf(http.StatusConflict, codeBeingDeleted, "the cluster %s is being deleted; nothing can be added to it",
			owner.Name)
	}
	r, err := h.clm.Create(c.ctx, clusters.Below(string(made.Cluster), nodePools), clm.ResourceCreate{Kind: "NodePool",
		Name: made.Name, Spec: made.Spec},
		c.r.Header.Get("Idempotency-Key"))
	if err != nil {
		err = replaceStatus(err, http.StatusNotFound, missing)
		if h.isClusterDeleting(c, err, id) {
			return c.errorf(http.StatusConflict, codeBeingDeleted, "the cluster %s is being deleted; nothing can be added to it",
				owner.Name)
		}
		return replaceNameConflict(err, c.errorf(http.StatusConflict, codeNameTaken,
			"a node pool named %s already exists in the cluster %s", made.Name, owner.Name))
	}
	c.w.Header().Set("Location", c.r.URL.Path+"/"+r.ID)
	return h.showNodePool(c, http.StatusCreated, cluster.NodePoolID(r.ID))
}

// isClusterDeleting reports whether err is a conflict and the cluster is being
// deleted.
func (h *customerAPI) isClusterDeleting(c *exchange, err error, cluster string) bool {
	if remote.StatusOf(err) != http.StatusConflict {
		return false
	}
	r, err := h.clm.Get(c.ctx, clusters, cluster, "deleted_time")
	return err == nil && r.DeletedTime != nil
}

func (h *customerAPI) getNodePool(c *exchange) error {
	id, err := c.readNodePoolID()
	if err != nil {
		return err
	}
	return h.showNodePool(c, http.StatusOK, id)
}

func (h *customerAPI) patchNodePool(c *exchange) error {
	return h.changeNodePool(c, request.Patch)
}

func (h *customerAPI) replaceNodePool(c *exchange) error {
	return h.changeNodePool(c, request.Replace)
}

func (h *customerAPI) changeNodePool(c *exchange, change request.Change) error {
	id, err := c.readNodePoolID()
	if err != nil {
		return err
	}
	etag, err := readIfMatch(c.r)
	if err != nil {
		return err
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	pool := target{nodePools, string(id), nounNodePool, etag}
	err = h.updateSpec(c, pool, func(have clmclient.Resource) (json.RawMessage, error) {
		of, err := h.clm.Get(c.ctx, clusters, string(ownerOf(have)), "")
		if err != nil {
			return nil, replaceStatus(err, http.StatusNotFound, c.notFound(nounNodePool, string(id)))
		}
		if err := c.checkChange("UpdateNodePool", policy.NodePool, have, of); err != nil {
			return nil, err
		}
		read, err := h.nodePoolRequests(c, of)
		if err != nil {
			return nil, err
		}
		after, problems, err := read.Change(request.Stored{
			ID: have.ID, Name: have.Name, Cluster: ownerOf(have), CreatedBy: have.CreatedBy,
			Account: c.caller.Account, Spec: have.Spec,
		}, change, body)
		return after, c.refusal(problems, err)
	})
	if err != nil {
		return err
	}
	return h.showNodePool(c, http.StatusOK, id)
}

func (h *customerAPI) deleteNodePool(c *exchange) error {
	id, err := c.readNodePoolID()
	if err != nil {
		return err
	}
	etag, err := readIfMatch(c.r)
	if err != nil {
		return err
	}
	if _, err := h.clm.Delete(c.ctx, nodePools, string(id), etag); err != nil {
		return replaceStatus(err, http.StatusNotFound, c.notFound(nounNodePool, string(id)))
	}
	return c.write(http.StatusAccepted, "", platform.NodePoolDeletion{Message: "Node pool deletion initiated",
		NodepoolID: string(id)})
}

func (h *customerAPI) listNodePools(c *exchange) error {
	watch, err := c.readFlag("watch")
	if err != nil {
		return err
	}
	q := c.r.URL.Query()
	from, search := nodePools, equalSearch("name", q.Get("name"))
	if cluster := q.Get("clusterId"); cluster != "" {
		if _, err := uuid.Parse(cluster); err != nil {
			return c.notFound(nounCluster, cluster)
		}
		if _, err := h.clm.Get(c.ctx, clusters, cluster, "name"); err != nil {
			return replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, cluster))
		}
		from = clusters.Below(cluster, nodePools)
	}
	if watch {
		return h.relayWatch(c, from, remote.WatchOptions{Cursor: q.Get("cursor"),
			Search: joinSearches(search, equalSearch("id", q.Get("id"))), Statuses: true}, inShape(c.toNodePool),
			h.mayDescribeNodePool)
	}
	page, err := listPage(h, c, listing[platform.NodePool]{
		from: from, search: search, show: c.toNodePool,
		visible: c.filter("DescribeNodePool", h.mayDescribeNodePool), phase: func(n platform.NodePool) string {
			return string(n.Status.Phase)
		},
		phases: phaseNames(platform.NodePoolPhaseProvisioning, platform.NodePoolPhaseReady, platform.NodePoolPhaseDeleting,
			platform.NodePoolPhaseFailed),
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, "", platform.NodePoolList{Items: page.items, Total: page.total, Limit: page.limit,
		Offset: page.offset})
}

func (h *customerAPI) nodePoolStatus(c *exchange) error {
	id, err := c.readNodePoolID()
	if err != nil {
		return err
	}
	r, err := h.nodePool(c, id)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, r.ETag, platform.NodePoolStatuses{
		NodepoolID: string(id), ClusterID: string(ownerOf(r)), Status: nodePoolStatus(r.Resource, c.visibility),
		ControllerStatuses: controllerStatuses(
			ownerOf(r), id, r.Statuses, c.visibility),
	})
}
