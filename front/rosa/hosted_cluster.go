package rosa

import (
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/front/rosa/request"
	"atoll.dev/internal/rest"
)

// projectLabel of a cluster's resource has target_project_id.
const projectLabel = "target_project_id"

// clusterOf shows a resource as a cluster. It has its statuses.
func (c *exchange) clusterOf(r clmclient.Resource) (platform.Cluster, error) {
	shown := platform.Cluster{
		ID: r.ID, Name: r.Name, TargetProjectID: r.Labels[projectLabel], CreatedBy: r.CreatedBy, Account: r.Tenancy["account"],
		Generation: int64(r.Generation), ResourceVersion: fmt.Sprint(
			r.Version), CreatedAt: r.CreatedTime, UpdatedAt: r.UpdatedTime, DeletedAt: r.DeletedTime,
	}
	shown.Status, shown.PlacementRef = clusterStatus(r.Resource, c.visibility)
	if err := json.Unmarshal(r.Spec, &shown.Spec); err != nil {
		return shown, fmt.Errorf("reading the spec of cluster %s: %w", r.ID, err)
	}
	return shown, nil
}

// shownCluster is an object of a watch as a cluster.
func (c *exchange) shownCluster(object json.RawMessage) (json.RawMessage, error) {
	r, err := clmclient.ResourceOf(object)
	if err != nil {
		return nil, err
	}
	shown, err := c.clusterOf(r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(shown)
}

// showCluster answers with a cluster as it is now.
func (h *hosted) showCluster(c *exchange, status int, id string) error {
	r, err := h.cluster(c, id)
	if err != nil {
		return err
	}
	shown, err := c.clusterOf(r)
	if err != nil {
		return err
	}
	return c.answer(status, r.ETag, shown)
}

// cluster reads a cluster with what is reported on it.
func (h *hosted) cluster(c *exchange, id string) (clmclient.Resource, error) {
	r, err := h.clm.GetWithStatuses(c.ctx, clusters, id)
	return r, explain(err, http.StatusNotFound, c.missing("cluster", id))
}

func (h *hosted) createCluster(c *exchange) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	releases, err := h.catalogue.releases(c.r.Context())
	if err != nil {
		return err
	}
	read := request.Clusters{Creator: c.who.Principal, Releases: releases}
	made, problems, err := read.Create(body)
	switch {
	case err != nil:
		return c.unreadable(err)
	case len(problems) > 0:
		return c.invalid(problems)
	}
	want := clm.ResourceCreate{Kind: "Cluster", Name: made.Name, Spec: made.Spec}
	if made.Project != "" {
		want.Labels = clm.Labels{projectLabel: made.Project}
	}
	r, err := h.clm.Create(c.ctx, clusters, want, c.r.Header.Get("Idempotency-Key"))
	if err != nil {
		return taken(err, c.fail(http.StatusConflict, codeTaken,
			"a cluster named %s already exists in your account; GET /api/v0/clusters?name=%s shows it", made.Name,
			made.Name))
	}
	c.w.Header().Set("Location", c.r.URL.Path+"/"+r.ID)
	return h.showCluster(c, http.StatusCreated, r.ID)
}

func (h *hosted) getCluster(c *exchange) error {
	id, err := c.id("cluster")
	if err != nil {
		return err
	}
	return h.showCluster(c, http.StatusOK, id)
}

func (h *hosted) patchCluster(c *exchange) error { return h.changeCluster(c, request.Patch) }
func (h *hosted) replaceCluster(c *exchange) error {
	return h.changeCluster(c, request.Replace)
}

// attempts are how often a change is made again because the document changed
// under it. Reports of adapters change it, too.
const attempts = 10

func (h *hosted) changeCluster(c *exchange, change request.Change) error {
	id, err := c.id("cluster")
	if err != nil {
		return err
	}
	etag, err := insisted(c.r)
	if err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	releases, err := h.catalogue.releases(c.r.Context())
	if err != nil {
		return err
	}
	read := request.Clusters{Creator: c.who.Principal, Releases: releases}
	err = h.rewrite(c, clusters, id, "cluster", etag, func(have clmclient.Resource) (json.RawMessage, error) {
		after, problems, err := read.Change(request.Stored{
			ID: have.ID, Name: have.Name, Project: have.Labels[projectLabel], CreatedBy: have.CreatedBy,
			Account: cluster.Account(c.who.Account), Spec: have.Spec,
		}, change, body)
		switch {
		case err != nil:
			return nil, c.unreadable(err)
		case len(problems) > 0:
			return nil, c.invalid(problems)
		}
		return after, nil
	})
	if err != nil {
		return err
	}
	return h.showCluster(c, http.StatusOK, id)
}

// rewrite makes a new spec of the present one and stores it, if the document
// has not changed meanwhile; otherwise it begins again, unless the caller
// insists on a version.
func (h *hosted) rewrite(c *exchange, in clmclient.Collection, id, what, etag string, change func(clmclient.Resource) (
	json.RawMessage, error)) error {
	return h.steadily(c, in, id, what, etag, func(have clmclient.Resource) error {
		if have.DeletedTime != nil {
			return c.fail(http.StatusConflict, codeGoing, "the %s is being deleted, since %s", what,
				have.DeletedTime.Format("2006-01-02T15:04:05Z07:00"))
		}
		after, err := change(have)
		if err != nil {
			return err
		}
		body, err := json.Marshal(map[string]json.RawMessage{"spec": after})
		if err != nil {
			return err
		}
		_, err = h.clm.Replace(c.ctx, in, id, body, have.ETag)
		return err
	})
}

// steadily does something about a document as it was read, and again when it
// has changed before that was done.
func (h *hosted) steadily(c *exchange, in clmclient.Collection, id, what, etag string,
	do func(clmclient.Resource) error) error {
	for attempt := 1; ; attempt++ {
		have, err := h.clm.Get(c.ctx, in, id, "")
		if err != nil {
			return explain(err, http.StatusNotFound, c.missing(what, id))
		}
		if etag != "" && !rest.SameVersion(etag, have.ETag) {
			return changed(what)
		}
		err = do(have)
		if remote.StatusOf(err) != http.StatusPreconditionFailed || etag != "" || attempt == attempts {
			return explain(err, http.StatusNotFound, c.missing(what, id))
		}
	}
}

// maxReason is how many characters the history keeps of why a deletion is
// forced.
const maxReason = 1024

// deleteCluster reads the protection and deletes what has it not, of one
// version: who switches it on meanwhile keeps the cluster.
func (h *hosted) deleteCluster(c *exchange) error {
	id, err := c.id("cluster")
	if err != nil {
		return err
	}
	force, err := c.flag("force")
	if err != nil {
		return err
	}
	reason := c.r.URL.Query().Get("reason")
	switch {
	case force && !c.who.Privileged:
		return c.fail(http.StatusForbidden, codeNotAllowed, "only privileged accounts may force a deletion")
	case force && reason == "":
		return c.fail(http.StatusBadRequest, codeBad,
			"reason is missing: a forced deletion leaves behind what was made for the cluster; say why, it is kept "+
				"in its history")
	case utf8.RuneCountInString(reason) > maxReason:
		return c.fail(http.StatusBadRequest, codeBad, "reason has more than %d characters", maxReason)
	}
	etag, err := insisted(c.r)
	if err != nil {
		return err
	}
	err = h.steadily(c, clusters, id, "cluster", etag, func(have clmclient.Resource) error {
		var s platform.ClusterSpec
		if err := json.Unmarshal(have.Spec, &s); err != nil {
			return fmt.Errorf("reading the spec of cluster %s: %w", id, err)
		}
		if s.DeleteProtection && have.DeletedTime == nil {
			return c.fail(http.StatusConflict, codeProtected,
				`the cluster %s is protected from deletion; PATCH it with {"spec":{"deleteProtection":false}} and delete it then`, have.Name)
		}
		if have.DeletedTime != nil {
			return nil
		}
		_, err := h.clm.Delete(c.ctx, clusters, id, have.ETag)
		return err
	})
	if err == nil && force {
		err = h.clm.ForceDelete(c.ctx, clusters, id, reason)
		if remote.StatusOf(err) == http.StatusNotFound {
			err = nil // there was nothing to wait for
		}
	}
	if err != nil {
		return err
	}
	return c.answer(http.StatusAccepted, "", platform.ClusterDeletion{Message: "Cluster deletion initiated",
		ClusterID: id})
}

func (h *hosted) listClusters(c *exchange) error {
	watch, err := c.flag("watch")
	if err != nil {
		return err
	}
	q := c.r.URL.Query()
	search := equalTo("name", q.Get("name"))
	if watch {
		return h.relay(c, clusters, remote.WatchOptions{
			Cursor: q.Get("cursor"), Search: both(search, equalTo("id", q.Get("id"))), Statuses: true,
		}, c.shownCluster)
	}
	page, err := listed(h, c, selection[platform.Cluster]{
		from: clusters, search: search, show: c.clusterOf, phase: func(cl platform.Cluster) string {
			return string(cl.Status.Phase)
		},
		phases: phases(platform.ClusterPhaseWaitingForPlacement, platform.ClusterPhaseProvisioning,
			platform.ClusterPhaseReady,
			platform.ClusterPhaseDeleting, platform.ClusterPhaseFailed),
	})
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, "", platform.ClusterList{Items: page.items, Total: page.total, Limit: page.limit,
		Offset: page.offset})
}

func (h *hosted) clusterStatuses(c *exchange) error {
	id, err := c.id("cluster")
	if err != nil {
		return err
	}
	r, err := h.cluster(c, id)
	if err != nil {
		return err
	}
	status, _ := clusterStatus(r.Resource, c.visibility)
	return c.answer(http.StatusOK, r.ETag, platform.ClusterStatuses{ClusterID: id, Status: status,
		ControllerStatuses: controllerStatuses(cluster.ID(id), "", r.Statuses, c.visibility)})
}
