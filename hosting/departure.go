package hosting

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
)

// A moving plane takes the status of its last upgrade and of its last restore with it. The HostedCluster on the target
// has an empty status: without them the target would start the release of the spec, even if it has failed, and repeat a
// failed restore (decision 170).

// departingStatus returns the parts of the status that move with a plane that leaves.
func departingStatus(s hypershift.HostedClusterStatus) (shown controlplane.Shown) {
	if s.Upgrade != nil {
		shown.Upgrade, _ = json.Marshal(s.Upgrade) // strings, numbers and times
	}
	if s.Restore != nil {
		shown.Restore, _ = json.Marshal(s.Restore)
	}
	return shown
}

// reasonToStay returns why a plane must not stop yet for a move: a step that only this management cluster can end, in
// minutes. "" when nothing holds the move up. A plane that sleeps before its first start with another release moves: it
// may sleep for weeks.
func reasonToStay(hc *hypershift.HostedCluster, s hypershift.HostedClusterStatus, p controlplane.Observation) string {
	last := p.LastStart
	if r := parseRestore(hc); r != nil && r.Invalid == "" && last.Data == r.Order.ID {
		isShown := s.Restore != nil && s.Restore.ID == r.Order.ID && s.Restore.Phase.IsFinal()
		if !isShown { // before it ends, bindings of revoked credentials are in the data
			return fmt.Sprintf("the restore %s must be completed first", r.Order.ID)
		}
	}
	if u := s.Upgrade; u != nil { // the copy of the data, with which a failed upgrade may go back, does not move
		goesBack := u.Phase == hypershift.UpgradeFailed && u.CompletedAt == nil && p.State != controlplane.Down
		if isOpen(u) && (last.Release != last.Served || goesBack) {
			return fmt.Sprintf("the upgrade from %s to %s is %s, which must end first", u.From, u.To, u.Phase)
		}
	}
	return ""
}

// arrival is the part of a moved plane's status with which this management cluster continues.
type arrival struct {
	Release controlplane.Version      // with which the plane starts here; "": that of the spec
	Upgrade *hypershift.UpgradeStatus // nil: none
	Restore *hypershift.RestoreStatus // nil: none
}

// arrivalOf returns the arrival of a plane; the zero value when no data of a moved plane is prepared. For a recovered
// plane see recoveredOf. A release that this management cluster does not offer is left out: the plane then starts with
// that of the spec. An upgrade whose new release was never started is left out, too: it begins here anew, with a copy.
func arrivalOf(s situation, wanted controlplane.Version, now time.Time) (a arrival) {
	r, offered := s.Restore, s.Releases
	if r == nil || !r.IsRecovery || !r.isPrepared() || r.Prepared.Departure == nil {
		return arrival{}
	}
	d := r.Prepared.Departure
	if !r.IsArrival {
		return recoveredOf(s, d.LastStart, wanted, now)
	}
	var upgrade hypershift.UpgradeStatus
	isBegun := upgradeOf(d, &upgrade) && (upgrade.Phase != hypershift.UpgradeRuns || d.Release != d.Served)
	if isBegun && slices.Contains(offered, orderedRelease(&upgrade)) {
		upgrade.Copy, upgrade.LaunchedAt = "", nil // the copy stays on the source
		a.Upgrade = &upgrade
	}
	if slices.Contains(offered, d.Served) {
		a.Release = d.Served
	}
	var shown hypershift.RestoreStatus
	if json.Unmarshal(d.Restore, &shown) == nil && shown.ID != "" {
		a.Restore = &shown
	}
	return a
}

// recoveredOf returns the arrival of a plane that is recovered from its backup. It has the status of an order of a
// restore that the lost plane did not execute.
//
// When the plane was ready last with another release than that of the spec, an upgrade was ordered, ran, or had failed
// when the management cluster was lost; the backup does not show which. The plane then starts here within an upgrade,
// and goes back to that release when it does not become ready.
func recoveredOf(s situation, last controlplane.LastStart, wanted controlplane.Version, now time.Time) (a arrival) {
	a.Restore = lostOrder(s.Cluster, last, metav1.NewTime(now.Truncate(time.Second)))
	if last.Served != wanted && wanted != "" && slices.Contains(s.Releases, last.Served) {
		a.Upgrade = newUpgrade(last.Served, wanted, s.Upgrades, now)
	}
	return a
}

// upgradeOf reads the upgrade that a plane brings. It returns false when there is none.
func upgradeOf(d *controlplane.Departure, u *hypershift.UpgradeStatus) bool {
	return json.Unmarshal(d.Upgrade, u) == nil && u.Phase != ""
}

// withReadableDeparture returns the preparation of an arrival, or a failed one when this version cannot read the status
// that the plane brings. Without that status the plane could start with a release that has failed, or execute an order
// twice.
func withReadableDeparture(p controlplane.Preparation) controlplane.Preparation {
	if p.Departure == nil {
		return p
	}
	var upgrade hypershift.UpgradeStatus
	var restore hypershift.RestoreStatus
	for _, part := range []struct {
		name    string
		content json.RawMessage
		value   any
	}{{"upgrade", p.Departure.Upgrade, &upgrade}, {"restore", p.Departure.Restore, &restore}} {
		if len(part.content) == 0 {
			continue
		}
		if err := json.Unmarshal(part.content, part.value); err != nil {
			return controlplane.Preparation{State: controlplane.PreparationFailed, Message: fmt.Sprintf("the status of the "+
				"plane's last %s cannot be read: run the version of hosting here that its other management cluster has: %s",
				part.name, err)}
		}
	}
	return p
}

// lostOrder returns the status of an order of a restore that a plane had when its management cluster was lost, and had
// not executed: nobody knows whether it had failed there days ago. nil: there is none.
func lostOrder(hc *hypershift.HostedCluster, last controlplane.LastStart, at metav1.Time) *hypershift.RestoreStatus {
	r := parseRestore(hc)
	if r == nil || r.Invalid != "" || last.HasRestored(r.Order.ID) {
		return nil
	}
	return &hypershift.RestoreStatus{ID: r.Order.ID, At: r.Order.At, DryRun: r.Order.DryRun,
		Phase: hypershift.RestoreFailed, StartedAt: at, CompletedAt: &at,
		Message: "this order was given before the plane was recovered from its lost management cluster; order it again"}
}

// isArriving reports whether a plane has come from another management cluster and was not ready here yet.
func isArriving(last controlplane.LastStart) bool {
	return !last.WasReady && slices.ContainsFunc(last.Restores(), func(data string) bool {
		return controlplane.MoveOf(data) != ""
	})
}
