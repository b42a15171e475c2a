package rosa

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/cluster/progress"
	"atoll.dev/front/rosa/request"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
)

// projectLabel is the label of a cluster's resource that stores target_project_id.
const projectLabel = "target_project_id"

// toCluster gives a resource, read with its reports, the shape of the wire for this caller.
func (c *exchange) toCluster(r clmclient.Resource) (platform.Cluster, error) {
	return toCluster(r, c.visibility, time.Now())
}

// toCluster gives a resource, read with its reports, the shape of the wire. The result must depend on nothing else than
// the parameters, because clusterBody keeps it.
func toCluster(r clmclient.Resource, visibility progress.Visibility, now time.Time) (platform.Cluster, error) {
	shown := platform.Cluster{
		ID: r.ID, Name: r.Name, TargetProjectID: r.Labels[projectLabel],
		CreatedBy: r.CreatedBy, Account: r.Tenancy["account"],
		Generation: int64(r.Generation), ResourceVersion: fmt.Sprint(r.Version),
		CreatedAt: r.CreatedTime, UpdatedAt: r.UpdatedTime, DeletedAt: r.DeletedTime,
	}
	shown.Status, shown.PlacementRef = clusterStatus(r.Resource, visibility, now)
	var err error
	if shown.Spec, err = jsonvalue.DecodeAs[platform.ClusterSpec](r.Spec); err != nil {
		return shown, fmt.Errorf("reading the spec of cluster %s: %w", r.ID, err)
	}
	return shown, nil
}

// showCluster reads a cluster and answers with it.
func (h *customerAPI) showCluster(c *exchange, status int, id cluster.ID) error {
	r, err := h.cluster(c, id)
	if err != nil {
		return err
	}
	body, err := clusterBody(r, c.visibility, time.Now())
	if err != nil {
		return err
	}
	return c.write(status, r.ETag, body)
}

func (h *customerAPI) createCluster(c *exchange) error {
	body, err := c.readBody()
	if err != nil {
		return err
	}
	releases, err := h.releases.Releases(c.r.Context())
	if err != nil {
		return err
	}
	read := request.Clusters{Creator: string(c.caller.Principal), Releases: releases}
	made, problems, err := read.Create(body)
	if err := c.refusal(problems, err); err != nil {
		return err
	}
	want := clm.ResourceCreate{Kind: "Cluster", Name: made.Name, Spec: made.Spec}
	if made.Project != "" {
		want.Labels = clm.Labels{projectLabel: made.Project}
	}
	r, err := h.clm.Create(c.ctx, clusters, want, c.r.Header.Get("Idempotency-Key"))
	if err != nil {
		return replaceNameConflict(err, c.errorf(http.StatusConflict, codeNameTaken,
			"a cluster named %s already exists in your account; GET /api/v0/clusters?name=%s shows it", made.Name,
			made.Name))
	}
	c.w.Header().Set("Location", c.r.URL.Path+"/"+r.ID)
	return h.showCluster(c, http.StatusCreated, cluster.ID(r.ID))
}

func (h *customerAPI) getCluster(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	return h.showCluster(c, http.StatusOK, id)
}

func (h *customerAPI) patchCluster(c *exchange) error { return h.changeCluster(c, request.Patch) }
func (h *customerAPI) replaceCluster(c *exchange) error {
	return h.changeCluster(c, request.Replace)
}

// maxAttempts is how often a change is tried again because the document changed
// meanwhile. Reports of adapters change it, too.
const maxAttempts = 10

func (h *customerAPI) changeCluster(c *exchange, change request.Change) error {
	id, err := c.readClusterID()
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
	releases, err := h.releases.Releases(c.r.Context())
	if err != nil {
		return err
	}
	read := request.Clusters{Creator: string(c.caller.Principal), Releases: releases}
	to := target{clusters, string(id), nounCluster, etag}
	err = h.updateSpec(c, to, func(have clmclient.Resource) (json.RawMessage, error) {
		if err := c.checkChange("UpdateCluster", policy.Cluster, have, have); err != nil {
			return nil, err
		}
		after, problems, err := read.Change(request.Stored{
			ID: have.ID, Name: have.Name, Project: have.Labels[projectLabel], CreatedBy: have.CreatedBy,
			Account: c.caller.Account, Spec: have.Spec,
		}, change, body)
		if err := c.refusal(problems, err); err != nil {
			return nil, err
		}
		return after, c.checkTags(have, after)
	})
	if err != nil {
		return err
	}
	return h.showCluster(c, http.StatusOK, id)
}

// target is the document that a request changes.
type target struct {
	in   clmclient.Collection
	id   string
	what noun
	etag string // of the only version that the caller wants to change; "": of any
}

// updateSpec reads a document, computes its next spec by change, and stores that.
// It begins again when the document changed meanwhile, unless the target has an ETag.
func (h *customerAPI) updateSpec(c *exchange, to target,
	change func(clmclient.Resource) (json.RawMessage, error)) error {
	return h.retryOnConflict(c, to, func(have clmclient.Resource) error {
		if have.DeletedTime != nil {
			return c.errorf(http.StatusConflict, codeBeingDeleted, "the %s is being deleted, since %s", to.what,
				have.DeletedTime.Format("2006-01-02T15:04:05Z07:00"))
		}
		after, err := change(have)
		if err != nil {
			return err
		}
		return h.replaceSpec(c, to, have, after)
	})
}

// replaceSpec replaces the spec of a document. The error of another version than the one that was read is 412.
func (h *customerAPI) replaceSpec(c *exchange, to target, have clmclient.Resource, spec json.RawMessage) error {
	body, err := json.Marshal(map[string]json.RawMessage{"spec": spec})
	if err != nil {
		return err
	}
	_, err = h.clm.Replace(c.ctx, to.in, to.id, body, have.ETag)
	return err
}

// retryOnConflict reads a document and calls do with it, and does so again, at
// most maxAttempts times, while do fails because the document has changed. A
// document of another version than the target's ETag is 412.
func (h *customerAPI) retryOnConflict(c *exchange, on target, do func(clmclient.Resource) error) error {
	for attempt := 1; ; attempt++ {
		have, err := h.clm.Get(c.ctx, on.in, on.id, "")
		if err != nil {
			return replaceStatus(err, http.StatusNotFound, c.notFound(on.what, on.id))
		}
		if on.etag != "" && !rest.SameVersion(on.etag, have.ETag) {
			return versionMismatch(on.what)
		}
		err = do(have)
		if remote.StatusOf(err) != http.StatusPreconditionFailed || on.etag != "" || attempt == maxAttempts {
			return replaceStatus(err, http.StatusNotFound, c.notFound(on.what, on.id))
		}
	}
}

// maxReason is how many characters the reason of a forced deletion may have.
const maxReason = 1024

// deleteCluster deletes a cluster without deletion protection. It deletes the
// version whose protection it has read: a protection that somebody switches on
// meanwhile holds. With force=true, an action of its own (see escalations), the
// deletion does not wait for the cluster's adapters.
func (h *customerAPI) deleteCluster(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	force, err := c.readFlag("force")
	if err != nil {
		return err
	}
	reason := c.r.URL.Query().Get("reason")
	switch {
	case force && reason == "":
		return c.errorf(http.StatusBadRequest, codeUnreadable,
			"reason is missing: a forced deletion leaves behind what was made for the cluster; say why, it is kept "+
				"in its history")
	case utf8.RuneCountInString(reason) > maxReason:
		return c.errorf(http.StatusBadRequest, codeUnreadable, "reason has more than %d characters", maxReason)
	}
	etag, err := readIfMatch(c.r)
	if err != nil {
		return err
	}
	actions := []access.Action{"DeleteCluster"}
	if force {
		actions = append(actions, "ForceDeleteCluster")
	}
	err = h.retryOnConflict(c, target{clusters, string(id), nounCluster, etag}, func(have clmclient.Resource) error {
		for _, action := range actions {
			if err := c.checkChange(action, policy.Cluster, have, have); err != nil {
				return err
			}
		}
		var s platform.ClusterSpec
		if err := json.Unmarshal(have.Spec, &s); err != nil {
			return fmt.Errorf("reading the spec of cluster %s: %w", id, err)
		}
		if s.DeleteProtection && have.DeletedTime == nil {
			return c.errorf(http.StatusConflict, codeProtected,
				`the cluster %s is protected from deletion; PATCH it with {"spec":{"deleteProtection":false}} `+
					"and delete it then", have.Name)
		}
		if have.DeletedTime != nil {
			return nil
		}
		_, err := h.clm.Delete(c.ctx, clusters, string(id), have.ETag)
		return err
	})
	if err == nil && force {
		err = h.clm.ForceDelete(c.ctx, clusters, string(id), reason)
		if remote.StatusOf(err) == http.StatusNotFound {
			err = nil // the deletion has finished already
		}
	}
	if err != nil {
		return err
	}
	return c.write(http.StatusAccepted, "", platform.ClusterDeletion{Message: "Cluster deletion initiated",
		ClusterID: string(id)})
}

func (h *customerAPI) listClusters(c *exchange) error {
	watch, err := c.readFlag("watch")
	if err != nil {
		return err
	}
	q := c.r.URL.Query()
	search := equalSearch("name", q.Get("name"))
	if watch {
		return h.relayWatch(c, clusters, remote.WatchOptions{
			Cursor: q.Get("cursor"), Search: joinSearches(search, equalSearch("id", q.Get("id"))), Statuses: true,
		}, inShape(c.toCluster), h.mayDescribeCluster)
	}
	page, err := listPage(h, c, listing[platform.Cluster]{
		from: clusters, search: search, show: c.toCluster, visible: c.filter("DescribeCluster", h.mayDescribeCluster),
		phase: func(cl platform.Cluster) string {
			return string(cl.Status.Phase)
		},
		phases: phaseNames(platform.ClusterPhaseWaitingForPlacement, platform.ClusterPhaseProvisioning,
			platform.ClusterPhaseReady,
			platform.ClusterPhaseDeleting, platform.ClusterPhaseFailed),
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, "", platform.ClusterList{Items: page.items, Total: page.total, Limit: page.limit,
		Offset: page.offset})
}

func (h *customerAPI) clusterStatuses(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	r, err := h.cluster(c, id)
	if err != nil {
		return err
	}
	status, _ := clusterStatus(r.Resource, c.visibility, time.Now())
	return c.write(http.StatusOK, r.ETag, platform.ClusterStatuses{ClusterID: string(id), Status: status,
		ControllerStatuses: controllerStatuses(id, "", r.Statuses, c.visibility)})
}
