package rosa

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/api/clm"
	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

// maxStoreLag is how far the store of backups is behind a cluster at most while its backup goes on.
const maxStoreLag = 10 * time.Second

func (h *customerAPI) clusterBackups(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	r, err := h.cluster(c, id)
	if err != nil {
		return err
	}
	data := cluster.Reports(r.Statuses).HostedCluster()
	backups := data.BackupReport()
	shown := platform.ClusterBackups{ClusterID: r.ID, Items: []platform.Backup{}, Count: len(backups.Chains)}
	if from, to, ok := restoreWindow(backups, time.Now()); ok {
		shown.From, shown.To = &from, &to
	}
	for _, chain := range backups.Chains {
		if taken, err := time.Parse(time.RFC3339, chain.Taken); err == nil {
			shown.Items = append(shown.Items, platform.Backup{Taken: taken, EverySecond: chain.EverySecond,
				Damaged: chain.Damaged})
		}
	}
	_, order, err := cluster.CutRestore(r.Spec)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", id, err)
	}
	if order != nil {
		restore := toRestore(r.ID, *order, data.RestoreReport())
		shown.Restore = &restore
	}
	return c.write(http.StatusOK, "", shown)
}

// restoreWindow returns the part of the past to which a cluster can be restored; false when it has no backup.
func restoreWindow(d cluster.BackupData, now time.Time) (from, to time.Time, ok bool) {
	from, err := time.Parse(time.RFC3339, d.From)
	if err != nil {
		return from, to, false
	}
	if to, err = time.Parse(time.RFC3339, d.To); err != nil {
		to = now.UTC().Add(-maxStoreLag).Truncate(time.Second)
	}
	if to.Before(from) {
		to = from
	}
	return from, to, true
}

// toRestore gives an order, and the report on it if there is one, the shape of the wire.
func toRestore(id string, order cluster.RestoreOrder, report cluster.RestoreData) platform.Restore {
	shown := platform.Restore{ID: order.ID, ClusterID: id, At: order.At, DryRun: order.DryRun,
		Mode: platform.RestoreModeInPlace, Phase: platform.RestorePhaseOrdered}
	if order.Source != nil {
		shown.Mode = platform.RestoreModeClone
	}
	if report.ID != order.ID {
		return shown
	}
	shown.Phase, shown.Message = platform.RestorePhase(report.Phase), report.Message
	shown.StartedAt, shown.CompletedAt = timeOf(report.StartedAt), timeOf(report.CompletedAt)
	shown.RestoredTo = timeOf(report.RestoredTo)
	var changes platform.RestoreChanges
	if len(report.Changes) > len("null") && json.Unmarshal(report.Changes, &changes) == nil {
		shown.Changes = &changes
	}
	return shown
}

// orderNamespace is the namespace of the version 5 UUIDs of orders.
var orderNamespace = uuid.MustParse("5df4da64-18f2-4e17-8d7f-3cd183e7ac8e")

// newOrderID returns the id of the order that the request makes for a cluster. Requests of one
// caller with one Idempotency-Key make one order: a try after a lost answer has the id of the first.
func (c *exchange) newOrderID(id cluster.ID) string {
	key := c.r.Header.Get("Idempotency-Key")
	if key == "" {
		return uuid.NewString()
	}
	return uuid.NewSHA1(orderNamespace,
		[]byte(string(c.caller.Account)+"\x00"+string(c.caller.Principal)+"\x00"+key+"\x00"+string(id))).String()
}

// restoreCluster orders a restore, in place or as a new cluster.
func (h *customerAPI) restoreCluster(c *exchange) error {
	id, want, err := readOrder(c, parseRestore)
	if err != nil {
		return err
	}
	if want.Mode == platform.RestoreRequestModeClone {
		return h.cloneCluster(c, id, want)
	}
	order := cluster.RestoreOrder{ID: c.newOrderID(id), At: want.At, DryRun: want.DryRun}
	to := target{clusters, string(id), nounCluster, ""}
	err = h.retryOnConflict(c, to, func(have clmclient.Resource) error {
		if err := c.checkChange("CreateRestore", policy.Cluster, have, have); err != nil {
			return err
		}
		have, err := h.clm.GetWithStatuses(c.ctx, clusters, string(id))
		if err != nil {
			return err
		}
		if isStored, err := c.isStored(have, order); isStored || err != nil {
			return err
		}
		spec, running, err := c.checkRestorable(have, want)
		if err != nil {
			return err
		}
		if running != nil {
			if !running.At.Equal(want.At) || running.DryRun != want.DryRun {
				return c.errorf(http.StatusConflict, codeRestoring,
					"the restore %s of the cluster %s to %s runs; wait for its end (GET /api/v0/clusters/%s/backups)",
					running.ID, have.Name, running.At.Format(time.RFC3339), id)
			}
			order = *running
			return nil
		}
		if spec, err = cluster.AddRestore(spec, &order); err != nil {
			return err
		}
		return h.replaceSpec(c, to, have, spec)
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusAccepted, "", toRestore(string(id), order, cluster.RestoreData{}))
}

// isStored reports whether the cluster's spec has the order already, also after the end of its
// restore. A restore to another moment under the same Idempotency-Key is an error.
func (c *exchange) isStored(have clmclient.Resource, order cluster.RestoreOrder) (bool, error) {
	_, stored, err := cluster.CutRestore(have.Spec)
	switch {
	case err != nil:
		return false, fmt.Errorf("cluster %s: %w", have.ID, err)
	case stored == nil || stored.ID != order.ID:
		return false, nil
	case !stored.At.Equal(order.At) || stored.DryRun != order.DryRun:
		return false, c.errorf(http.StatusUnprocessableEntity, codeKeyReused,
			"this Idempotency-Key was used for another restore of the cluster %s; take a new one", have.Name)
	}
	return true, nil
}

// cloneCluster creates a cluster that begins with the data of another one.
func (h *customerAPI) cloneCluster(c *exchange, id cluster.ID, want platform.RestoreRequest) error {
	have, err := h.clm.GetWithStatuses(c.ctx, clusters, string(id))
	if err != nil {
		return replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, string(id)))
	}
	if err := c.checkChange("CreateRestore", policy.Cluster, have, have); err != nil {
		return err
	}
	err = access.AuthorityFrom(c.r.Context()).Check(c.r.Context(), "CreateCluster",
		policy.Resource{Kind: policy.Cluster, Account: c.caller.Account})
	if err != nil {
		return err
	}
	spec, _, err := c.checkRestorable(have, want)
	if err != nil {
		return err
	}
	order := cluster.RestoreOrder{ID: c.newOrderID(id), At: want.At, Source: &cluster.RestoreSource{
		Namespace: apihosting.Namespace(have.ID), Name: apihosting.HostedClusterName(have.ID)}}
	if spec, err = c.cloneSpec(spec, order); err != nil {
		return err
	}
	made, err := h.clm.Create(c.ctx, clusters, clm.ResourceCreate{Kind: "Cluster", Name: want.Name, Spec: spec,
		Labels: have.Labels}, c.r.Header.Get("Idempotency-Key"))
	if err != nil {
		return replaceNameConflict(err, c.errorf(http.StatusConflict, codeNameTaken,
			"a cluster named %s already exists in your account; GET /api/v0/clusters?name=%s shows it", want.Name,
			want.Name))
	}
	return c.write(http.StatusAccepted, "", toRestore(made.ID, order, cluster.RestoreData{}))
}

// cloneSpec returns the spec of a clone: that of the original cluster, without the members that are about the original
// alone.
func (c *exchange) cloneSpec(spec json.RawMessage, order cluster.RestoreOrder) (json.RawMessage, error) {
	var members map[string]any
	if err := json.Unmarshal(spec, &members); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	for _, name := range []string{"deleteProtection", "expirationTimestamp", "hibernated", "displayName", "rotations"} {
		delete(members, name)
	}
	members["creatorARN"] = c.caller.Principal
	spec, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	return cluster.AddRestore(spec, &order)
}

// parseRestore reads the body of an order.
func parseRestore(body []byte) (want platform.RestoreRequest, p document.Problems, err error) {
	want, p, err = parseOrder[platform.RestoreRequest](body, "a restore", map[string]document.Rule{
		"at": document.Time, "mode": document.OneOf("in-place", "clone"), "name": cluster.Name(cluster.MaxNameLength),
		"dryRun": document.Boolean,
	})
	if err != nil || len(p) > 0 {
		return want, p, err
	}
	isClone := want.Mode == platform.RestoreRequestModeClone
	switch {
	case want.At.IsZero():
		p.Add("at", "is missing: the second to restore, such as 2027-01-02T15:04:05Z")
	case want.At.After(time.Now()):
		p.Add("at", "is in the future")
	}
	switch {
	case isClone && want.Name == "":
		p.Add("name", "is missing: the name of the new cluster")
	case isClone && want.DryRun:
		p.Add("dryRun", "is not possible with the mode clone, which changes nothing that exists")
	case !isClone && want.Name != "":
		p.Add("name", "is possible with the mode clone only")
	}
	return want, p, nil
}

// checkRestorable refuses a cluster that cannot be restored to a moment. It returns the cluster's spec without its last
// order, and that order while it runs.
func (c *exchange) checkRestorable(have clmclient.Resource, want platform.RestoreRequest) (
	json.RawMessage, *cluster.RestoreOrder, error) {
	if have.DeletedTime != nil {
		return nil, nil, c.errorf(http.StatusConflict, codeBeingDeleted, "the cluster %s is being deleted", have.Name)
	}
	data := cluster.Reports(have.Statuses).HostedCluster()
	spec, order, err := cluster.CutRestore(have.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster %s: %w", have.ID, err)
	}
	if last := data.RestoreReport(); order != nil && last.ID == order.ID && last.IsFinal() {
		order = nil
	}
	from, to, ok := restoreWindow(data.BackupReport(), time.Now().Add(maxStoreLag)) // a restore waits for the last seconds
	var p document.Problems
	switch {
	case !ok:
		return nil, nil, c.errorf(http.StatusConflict, codeNoBackups,
			"the cluster %s has no backup: its management cluster makes none, or the first is not complete yet", have.Name)
	case want.At.Before(from):
		p.Add("at", "is before the oldest backup, which is of %s", from.Format(time.RFC3339))
	case want.At.After(to):
		p.Add("at", "is after the end of the backups, %s", to.Format(time.RFC3339))
	}
	if len(p) > 0 {
		return nil, nil, c.validationError(p)
	}
	return spec, order, nil
}
