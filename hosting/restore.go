package hosting

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/hypershift"
	"atoll.dev/backup"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// restore is the order of a HostedCluster's annotation and the state of its data.
type restore struct {
	Order   hypershift.RestoreOrder
	At      time.Time
	Invalid string // why the order cannot be executed; "" for one that can
	// IsExecuted: the plane has the data of the order, or had it before. IsUnfinished: the plane has the data, and the
	// status does not show yet that the restore is completed, see finishRestore.
	IsExecuted, IsUnfinished bool
	// IsRecovery: hosting itself has given the order, for a plane that was lost with its management cluster.
	IsRecovery bool
	// IsArrival: the order is the recovery of a plane that comes from another management cluster.
	IsArrival bool
	Prepared  controlplane.Preparation
}

var orderID = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// parseRestore parses the annotation of an order; nil: there is none.
func parseRestore(hc *hypershift.HostedCluster) *restore {
	text := hc.Annotations[hypershift.RestoreAnnotation]
	if text == "" {
		return nil
	}
	r := &restore{}
	err := json.Unmarshal([]byte(text), &r.Order)
	if err == nil {
		r.At, err = time.Parse(time.RFC3339, r.Order.At)
	}
	source := r.Order.Source
	switch {
	case err != nil:
		r.Invalid = fmt.Sprintf("the annotation %s cannot be read: %s", hypershift.RestoreAnnotation, err)
	case !orderID.MatchString(r.Order.ID):
		r.Invalid = fmt.Sprintf("the annotation %s: the id %q is not possible", hypershift.RestoreAnnotation, r.Order.ID)
	case source != nil && (source.Namespace == "" || source.Name == ""):
		r.Invalid = fmt.Sprintf("the annotation %s: the source needs a namespace and a name", hypershift.RestoreAnnotation)
	}
	return r
}

// isClone reports whether the order makes a new plane with the data of another one.
func (r *restore) isClone() bool { return r != nil && r.Order.Source != nil }

// isPrepared reports whether the plane should restart with the data of the order.
func (r *restore) isPrepared() bool {
	return r != nil && !r.IsExecuted && !r.Order.DryRun && r.Prepared.State == controlplane.PreparationDone
}

// needsDataToStart reports whether a plane must not start before it has the data of the order: without that data a
// clone or a lost plane would be empty.
func (r *restore) needsDataToStart(last controlplane.LastStart) bool {
	return r != nil && (r.isClone() || r.IsRecovery || r.Invalid != "") && last.Data == "" && !last.WasReady
}

// isFailed reports whether the data of the order will not come.
func (r *restore) isFailed() bool {
	return r.Invalid != "" || r.IsExecuted || r.Prepared.State == controlplane.PreparationFailed
}

// recoveryReason returns the reason why a lost plane does not serve yet. Most new planes have the last reason for a
// moment, while hosting reads from the store whether they have a backup.
func (r *restore) recoveryReason() (reason, message string) {
	switch p := r.Prepared; {
	case r.IsArrival && r.isFailed():
		return string(cluster.ReasonRestoreFailed), "the plane cannot arrive from the other management cluster: " +
			cmp.Or(r.Invalid, p.Message)
	case r.IsArrival:
		return string(cluster.ReasonMoving), "the plane comes from another management cluster"
	case p.State == controlplane.PreparationFailed:
		return string(cluster.ReasonRestoreFailed), "the earlier management cluster was lost, and the data could " +
			"not be recovered: " + p.Message
	case p.State != controlplane.PreparationWaits:
		return string(cluster.ReasonRestoring), "the earlier management cluster was lost; the plane gets its data from " +
			"its backup"
	case p.Message != "":
		return string(cluster.ReasonPlaneStarting), "the plane waits: " + p.Message
	}
	return string(cluster.ReasonPlaneStarting), "the plane starts"
}

// isUnfinished reports whether the plane has the data of the order and the status does not show that yet.
func (r *restore) isUnfinished() bool { return r != nil && r.IsUnfinished }

// findRecovery returns the recovery of a plane that never ran on this machine and has a backup; nil: there is none, or
// the recovery is complete. The plane was lost with its management cluster, and the region has ordered it here anew.
// When the order to move says that the plane recovers and there is no backup, the recovery fails and the plane does not
// start.
//
// A plane whose HostedCluster shows that it was ready here is not recovered: its data is missing (DataMissing), and may
// be on a disk that is not mounted. An operator decides.
func (h *Hosting) findRecovery(c *hostedCluster, hc *hypershift.HostedCluster, last controlplane.LastStart) *restore {
	r := &restore{Order: hypershift.RestoreOrder{ID: controlplane.Recovery}, IsRecovery: true}
	if last.Data == controlplane.Recovery {
		if !h.o.Backups.HasRemains(c.id, controlplane.Recovery) {
			return nil // finishRestore has completed it
		}
		r.IsExecuted, r.IsUnfinished = true, true
		return r
	}
	if c.isNew || last.Release != "" || wasCompleted(hc.Status) {
		return nil
	}
	release, refused := h.o.Releases.pick(hc.Spec.Release.Image, "")
	if refused != nil {
		return nil // the plane does not start either
	}
	r.Prepared = h.o.Backups.Prepare(c.id, controlplane.RestoreOrder{ID: controlplane.Recovery, Source: c.id,
		Release: release})
	if r.Prepared.State == controlplane.PreparationNone && parseMove(hc).recovers() {
		r.Prepared = controlplane.Preparation{State: controlplane.PreparationFailed,
			Message: "the object store of this management cluster has no backup of it"}
		return r
	}
	if r.Prepared.State == controlplane.PreparationNone {
		c.isNew = true // Backups keeps the state of one order, and a clone has another one
		return nil
	}
	return r
}

// findRestore returns the order of a cluster; nil: there is none. For an order that was not executed yet it begins to
// make the data. The recovery of a lost plane has priority until the plane has its data, because the backup lists the
// orders that the plane had executed. From then on another order has priority over the rest of the recovery, because
// the plane may never become ready with the recovered data.
func (h *Hosting) findRestore(c *hostedCluster, hc *hypershift.HostedCluster, last controlplane.LastStart) *restore {
	var recovery *restore
	if m := parseMove(hc); m.arrives() {
		recovery = h.findArrival(c, hc, m, last)
	} else {
		recovery = h.findRecovery(c, hc, last)
	}
	if recovery != nil && !recovery.IsExecuted {
		return recovery
	}
	r := parseRestore(hc)
	if r == nil || r.Invalid != "" {
		return cmp.Or(recovery, r)
	}
	status, upgrade := hc.Status.Restore, hc.Status.Upgrade
	if c.status != nil {
		status, upgrade = c.status.Restore, c.status.Upgrade
	}
	isShown := status != nil && status.ID == r.Order.ID && status.Phase.IsFinal()
	r.IsExecuted = isShown || last.HasRestored(r.Order.ID)
	r.IsUnfinished = !isShown && last.Data == r.Order.ID
	if r.IsExecuted {
		return cmp.Or(recovery, r)
	}
	source := c.id
	if from := r.Order.Source; from != nil {
		source = controlplane.ID{Namespace: from.Namespace, Name: from.Name}
	}
	release := last.Release
	if upgrade != nil && !upgrade.Phase.IsFinal() {
		release = orderedRelease(upgrade) // after a failed upgrade the spec has a release that does not work
	} else if wanted, refused := h.o.Releases.pick(hc.Spec.Release.Image, release); refused == nil {
		release = wanted
	}
	r.Prepared = h.o.Backups.Prepare(c.id, controlplane.RestoreOrder{
		ID: r.Order.ID, Source: source, At: r.At, DryRun: r.Order.DryRun, Release: release,
	})
	return r
}

// agreeLimit bounds the calls to a restored plane in one reconciliation: a customer's slow webhook must not keep the
// status from being written.
const agreeLimit = 5 * time.Second

// finishRestore completes a restore once the plane serves: it removes the identity of another cluster from a clone,
// calls Options.Restored, and removes the staging directory. It repeats this until the status shows the restore as
// completed.
func (h *Hosting) finishRestore(ctx context.Context, c *hostedCluster, r *report) error {
	order := r.Order
	if order == nil || order.Invalid != "" {
		return nil
	}
	if order.IsExecuted && !order.IsUnfinished && c.forgotten != order.Order.ID {
		h.o.Backups.Forget(c.id, order.Order.ID)
		c.forgotten = order.Order.ID
	}
	if !order.IsUnfinished || r.Plane.State != controlplane.Ready {
		return nil
	}
	admin, err := h.o.Planes.Client(c.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, agreeLimit)
	defer cancel()
	if order.isClone() {
		if err := removeIdentity(ctx, admin); err != nil {
			return fmt.Errorf("removing the other cluster's identity from a clone: %w", err)
		}
	}
	if h.o.Restored != nil && !order.IsArrival { // the data of a moved plane is not old: its credentials are valid
		if err := h.o.Restored(ctx, c.id, admin); err != nil {
			return fmt.Errorf("after the restore: %w", err)
		}
	}
	if order.IsRecovery {
		h.o.Backups.Forget(c.id, order.Order.ID)
		order.IsUnfinished = false
		return nil
	}
	h.o.Backups.Forget(c.id, controlplane.Recovery) // the order has replaced the data of the recovery
	r.Restored = order.Order.ID
	return nil
}

// removeIdentity deletes from a clone the ConfigMap with the certificate authorities of the source's clients: extension
// API servers would accept clients of both planes. The clone's API server writes the ConfigMap again with its own
// authorities.
func removeIdentity(ctx context.Context, admin controlplane.Admin) error {
	config, err := admin.RESTConfig()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	err = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("kube-system").
		Delete(ctx, "extension-apiserver-authentication", metav1.DeleteOptions{})
	if err != nil && !loop.IsGone(err) {
		return err
	}
	return nil
}

// isFromElsewhere reports whether a plane's data came by a recovery or a move from another management cluster.
func isFromElsewhere(data string) bool {
	return data == controlplane.Recovery || controlplane.MoveOf(data) != ""
}

// decideRestore computes the status of the last order.
func decideRestore(before *hypershift.RestoreStatus, r report, now time.Time) *hypershift.RestoreStatus {
	order := r.Order
	if before == nil && r.Brought != nil {
		return r.Brought
	}
	if order == nil || order.IsRecovery {
		return before
	}
	if before != nil && before.ID == order.Order.ID && before.Phase.IsFinal() {
		return before
	}
	at := metav1.NewTime(now.Truncate(time.Second))
	s := hypershift.RestoreStatus{ID: order.Order.ID, At: order.Order.At, DryRun: order.Order.DryRun, StartedAt: at}
	if before != nil && before.ID == order.Order.ID {
		s = *before
	}
	end := func(phase hypershift.RestorePhase, message string) {
		s.Phase, s.Message, s.CompletedAt = phase, message, &at
	}
	p := order.Prepared
	if !p.Restores.IsZero() {
		s.RestoredTo = p.Restores.UTC().Format(time.RFC3339Nano)
	}
	switch {
	case order.Invalid != "":
		end(hypershift.RestoreFailed, order.Invalid)
	case r.Restored == order.Order.ID:
		end(hypershift.RestoreCompleted, "")
	case r.Plane.LastStart.Data == order.Order.ID:
		s.Phase, s.Message = hypershift.RestoreReplacing, "the plane starts with the restored data"
	case r.Plane.LastStart.HasRestored(order.Order.ID) && isFromElsewhere(r.Plane.LastStart.Data):
		end(hypershift.RestoreCompleted, "this order was executed before the plane came to this management cluster; it "+
			"does not run again")
	case r.Plane.LastStart.HasRestored(order.Order.ID):
		end(hypershift.RestoreFailed, "this order was executed before a later one; it does not run again")
	case p.State == controlplane.PreparationFailed:
		end(hypershift.RestoreFailed, p.Message)
	case p.State == controlplane.PreparationDone && order.Order.DryRun:
		s.Changes, _ = json.Marshal(p.Changes) // numbers and strings
		end(hypershift.RestoreCompleted, "")
	case p.State == controlplane.PreparationDone && r.Paused:
		s.Phase, s.Message = hypershift.RestoreWaiting, "spec.pausedUntil holds the restore up"
	case p.State == controlplane.PreparationDone:
		s.Phase, s.Message = hypershift.RestoreReplacing, "the plane stops and starts with the restored data"
	case p.State == controlplane.PreparationRuns:
		s.Phase, s.Message = hypershift.RestorePreparing, "the data is made from the backup"
	default:
		s.Phase, s.Message = hypershift.RestoreWaiting, "the backup does not reach the moment yet"
		if p.Message != "" {
			s.Message = p.Message
		}
	}
	return &s
}

// backupStatus returns the status of a window. While the backup goes on it has no field To, whose value would change
// all the time. state is the state of the backup; nil: no backup is made at present.
func backupStatus(w controlplane.BackupWindow, state *backup.State) *hypershift.BackupStatus {
	s := &hypershift.BackupStatus{Chains: []hypershift.BackupChain{}}
	if !w.From.IsZero() { // else there is no backup, or all are damaged
		s.From = w.From.UTC().Format(time.RFC3339)
	}
	if isStopped := state == nil || state.Failing != ""; isStopped && !w.Stored.IsZero() {
		s.To = w.Stored.UTC().Format(time.RFC3339)
	}
	for _, c := range w.Chains {
		s.Chains = append(s.Chains, hypershift.BackupChain{Taken: c.Taken.UTC().Format(time.RFC3339),
			EverySecond: c.EverySecond, Damaged: c.Damaged})
	}
	return s
}
