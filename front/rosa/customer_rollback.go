package rosa

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

// rollbackCluster gives the spec of a cluster the release before its last upgrade.
func (h *customerAPI) rollbackCluster(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	err = h.retryOnConflict(c, target{clusters, string(id), nounCluster, ""}, func(have clmclient.Resource) error {
		if err := c.checkChange("CreateRollback", policy.Cluster, have, have); err != nil {
			return err
		}
		have, err := h.clm.GetWithStatuses(c.ctx, clusters, string(id))
		if err != nil {
			return err
		}
		spec, err := c.specBefore(have)
		if spec == nil || err != nil {
			return err
		}
		body, err := json.Marshal(map[string]any{"spec": spec})
		if err != nil {
			return err
		}
		_, err = h.clm.Replace(c.ctx, clusters, string(id), body, have.ETag)
		return err
	})
	if err != nil {
		return err
	}
	return h.showCluster(c, http.StatusAccepted, id)
}

// specBefore returns the spec of a cluster with the release before its last upgrade; nil when the spec has that
// already. A cluster that cannot go back is a conflict.
func (c *exchange) specBefore(have clmclient.Resource) (map[string]any, error) {
	if have.DeletedTime != nil {
		return nil, c.errorf(http.StatusConflict, codeBeingDeleted, "the cluster is being deleted, since %s",
			have.DeletedTime.Format(time.RFC3339))
	}
	var spec map[string]any
	if err := json.Unmarshal(have.Spec, &spec); err != nil {
		return nil, fmt.Errorf("reading the spec of cluster %s: %w", have.ID, err)
	}
	u := cluster.Reports(have.Statuses).HostedCluster().UpgradeReport()
	image, _ := document.Lookup(spec, "hostedCluster", "release", "image").(string)
	if u.To != "" && image == cluster.ReleaseImage(u.From) {
		return nil, nil
	}
	if err := u.CheckRollback(time.Now()); err != nil {
		return nil, c.errorf(http.StatusConflict, codeNoRollback, "the cluster %s cannot go back: %s", have.Name, err)
	}
	if image != cluster.ReleaseImage(u.To) {
		return nil, c.errorf(http.StatusConflict, codeNoRollback,
			"the cluster %s cannot go back yet: its upgrade to %s has not begun; try again in some seconds", have.Name, image)
	}
	document.Ensure(spec, "hostedCluster", "release")["image"] = cluster.ReleaseImage(u.From)
	return spec, nil
}

// toUpgrade gives the last upgrade of a cluster the shape of the wire; nil: there was none.
func toUpgrade(u cluster.UpgradeData, now time.Time) *platform.ClusterUpgrade {
	if u.To == "" {
		return nil
	}
	shown := platform.ClusterUpgrade{
		From: u.From, To: u.To, Phase: platform.ClusterUpgradePhase(u.Phase), Message: u.Message,
		StartedAt: u.StartedAt, SoakUntil: u.SoakUntil, CompletedAt: u.CompletedAt,
		CanRollBack: u.CheckRollback(now) == nil,
	}
	if u.Phase == cluster.UpgradeRuns || u.Phase == cluster.UpgradeSoaks || u.Phase == cluster.UpgradeRollbackFailed {
		shown.EmulatedVersion = u.EmulatedVersion
	}
	if u.CopyUsed {
		shown.LostAfter = u.StartedAt
	}
	return &shown
}
