package hosting

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/api/rotation"
	"atoll.dev/backup"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// report is the input of decideStatus.
type report struct {
	Generation int64
	Problems   []string // of the spec
	Refused    *refusal // of the release
	Paused     bool
	PauseError error
	Failure    *controlplane.Failure // of hosting itself; a plane's own is in Plane

	Release  controlplane.Version // that should run; "" when there is none yet
	Image    string               // that names it
	Plane    controlplane.Observation
	Power    powerState
	Endpoint hypershift.APIEndpoint
	Backup   *backup.State // nil: none is made
	// DrillFailed is why the backup could not be restored for practice; "" when it could, or nobody has tried.
	DrillFailed string
	Secret      string // with the administrator's kubeconfig; "" before it was written

	Move     *move                     // of the annotation; nil: there is none
	Order    *restore                  // of the annotation; nil: there is none
	Brought  *hypershift.RestoreStatus // of the last order, which a plane brings that arrives; nil: none
	Restored string                    // order whose data the plane serves, and with which everything agrees; "" for none
	Window   *hypershift.BackupStatus  // nil: not known
	Upgrade  *hypershift.UpgradeStatus // the last one; nil: there was none
	Delayed  string                    // why the next upgrade does not begin yet; "" otherwise

	Rotations []orderedRotation     // the last orders
	Rotated   map[rotation.Key]bool // the step with which the plane has started is done

	HasIssuers     bool     // of tokens
	IssuerProblems []string // with the keys of some of them
}

// maxHistory is how many versions a status lists.
const maxHistory = 20

// decideStatus computes the status of a HostedCluster, with HyperShift's
// conditions and reasons. Equal reports give equal statuses, because the agent sends
// each change of a status to the region.
func decideStatus(before hypershift.HostedClusterStatus, r report, now time.Time) hypershift.HostedClusterStatus {
	if r.Power == asleep && r.Plane.State != controlplane.Down && r.Plane.State != controlplane.Failing {
		return before // the plane counts as awake until its process has ended
	}
	if r.Plane.Unconfirmed && len(before.Conditions) > 0 {
		return before
	}
	s := before
	s.Restore = decideRestore(before.Restore, r, now)
	s.Move = decideMove(before.Move, r)
	s.Rotations = rotationStatuses(before.Rotations, r, now)
	if r.Window != nil {
		s.Backups = r.Window
	}
	if r.Upgrade != nil {
		s.Upgrade = r.Upgrade
	}
	s.Conditions = slices.Clone(before.Conditions)
	s.Version = decideVersion(before.Version, r, now)
	s.Power = hypershift.Power(r.Power)
	if r.Power == goingToSleep {
		s.Power = hypershift.Awake
	}
	if r.Plane.LastStart.WasReady {
		s.ControlPlaneEndpoint = r.Endpoint
	}
	if size := sizeStatus(r.Plane.Size); size != nil {
		s.Size = size
	}
	if r.Secret != "" {
		s.KubeConfig = &hypershift.LocalObject{Name: r.Secret}
	}
	if !r.HasIssuers {
		meta.RemoveStatusCondition(&s.Conditions, hypershift.ValidIDPConfiguration)
	}
	for _, c := range decideConditions(r) {
		c.ObservedGeneration = r.Generation
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return s
}

// serves reports whether the plane is ready and runs the ordered release.
func (r report) serves() bool {
	return r.Plane.State == controlplane.Ready && r.Plane.LastStart.Release == r.Release
}

// sleeps reports whether the plane is stopped because it is unused, or starts
// because of a request. It counts as available: a request waits and is answered.
func (r report) sleeps() bool {
	return (r.Power == asleep || r.Power == waking) && r.Plane.LastStart.WasReady && r.Plane.Failure == nil
}

// upgrading reports whether the plane is between two releases.
func (r report) upgrading() bool {
	return r.Release != "" && r.Plane.LastStart.WasReady && (r.Plane.LastStart.Release != r.Release)
}

// decideVersion computes the version history, newest first. A version is Partial
// from its order on, and Completed once the plane serves it.
func decideVersion(before *hypershift.ClusterVersionStatus, r report, now time.Time) *hypershift.ClusterVersionStatus {
	if r.Release == "" {
		return before
	}
	v := hypershift.ClusterVersionStatus{Desired: hypershift.VersionRelease{Version: string(r.Release), Image: r.Image},
		ObservedGeneration: r.Generation}
	if before != nil {
		v.History = slices.Clone(before.History)
	}
	at := metav1.NewTime(now.Truncate(time.Second))
	if len(v.History) == 0 || v.History[0].Version != string(r.Release) {
		v.History = slices.Insert(v.History, 0, hypershift.UpdateHistory{State: hypershift.Partial, StartedTime: at,
			Version: string(r.Release), Image: r.Image})
	}
	if first := &v.History[0]; first.State == hypershift.Partial && r.serves() {
		first.State, first.CompletionTime = hypershift.Completed, &at
	}
	v.History = v.History[:min(len(v.History), maxHistory)]
	return &v
}

// decideConditions computes all conditions, without times and generation.
func decideConditions(r report) []metav1.Condition {
	good := func(kind, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reasonAsExpected, Message: message}
	}
	bad := func(kind, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	failed := r.Failure
	if failed == nil {
		failed = r.Plane.Failure
	}
	var list []metav1.Condition
	add := func(c metav1.Condition) { list = append(list, c) }

	switch {
	case len(r.Problems) > 0:
		add(bad(hypershift.ValidConfiguration, reasonInvalid, strings.Join(r.Problems, "; ")))
	default:
		add(good(hypershift.ValidConfiguration, "the configuration is valid"))
	}
	add(good(hypershift.SupportedHostedCluster, "hosting runs clusters of this kind"))
	if r.Refused != nil {
		add(bad(hypershift.ValidReleaseImage, r.Refused.Reason, r.Refused.Message))
	} else {
		add(good(hypershift.ValidReleaseImage, "the release is in the catalogue"))
	}
	switch {
	case r.Paused:
		add(bad(hypershift.ReconciliationActive, reasonPaused,
			"spec.pausedUntil holds changes up; the plane stays as it is"))
	case r.PauseError != nil:
		add(good(hypershift.ReconciliationActive, "spec.pausedUntil is ignored: "+r.PauseError.Error()))
		list[len(list)-1].Reason = reasonInvalidPause
	default:
		add(good(hypershift.ReconciliationActive, "the cluster is kept as its spec requires"))
	}
	if failed != nil {
		add(bad(hypershift.ReconciliationSucceeded, string(failed.Reason), failed.Message))
	} else {
		add(good(hypershift.ReconciliationSucceeded, "nothing failed"))
	}

	// The plane's directory, port and program.
	switch {
	case failed != nil && failed.Reason != controlplane.PlaneFailed && failed.Reason != controlplane.PlaneHangs &&
		failed.Reason != controlplane.OutOfMemory:
		add(bad(hypershift.InfrastructureReady, string(failed.Reason), failed.Message))
	case r.Plane.Backend == "":
		add(bad(hypershift.InfrastructureReady, "WaitingOnInfrastructureReady", "the plane has no place yet"))
	default:
		message := "directory, port and program of the plane are there"
		if len(r.Plane.Walls) > 0 {
			message += "; walls: " + strings.Join(r.Plane.Walls, ", ")
		}
		add(good(hypershift.InfrastructureReady, message))
	}

	why, message := r.reason(failed)
	probe := func(kind string, failing []string, text string) {
		switch {
		case (r.Plane.State == controlplane.Ready || r.Plane.State == controlplane.Unready) && len(failing) == 0:
			add(good(kind, text))
		case r.Plane.State == controlplane.Unready:
			add(bad(kind, "NotReady", "not well: "+strings.Join(r.Plane.FailingParts, ", ")))
		default:
			add(bad(kind, why, message))
		}
	}
	var etcdFailing []string // without the API server nobody can ask etcd
	for _, part := range r.Plane.FailingParts {
		if part == "etcd" || part == controlplane.APIServer {
			etcdFailing = append(etcdFailing, part)
		}
	}
	probe(hypershift.EtcdAvailable, etcdFailing, "etcd answers")
	probe(hypershift.KubeAPIServerAvailable, r.Plane.FailingParts, "the API server answers")

	switch {
	case r.Plane.State == controlplane.Ready:
		add(good(hypershift.Available, "the hosted control plane is available"))
	case r.sleeps():
		add(metav1.Condition{Type: hypershift.Available, Status: metav1.ConditionTrue, Reason: why, Message: message})
	default:
		add(bad(hypershift.Available, why, message))
	}
	switch {
	case r.Refused != nil, len(r.Problems) > 0:
		reason, text := reasonInvalid, strings.Join(r.Problems, "; ")
		if r.Refused != nil {
			reason, text = r.Refused.Reason, r.Refused.Message
		}
		add(bad(hypershift.Progressing, reason, "the plane stays as it is: "+text))
	case r.Delayed != "":
		add(metav1.Condition{Type: hypershift.Progressing, Status: metav1.ConditionTrue, Reason: "Upgrading",
			Message: r.Delayed})
	case r.Power == asleep, r.serves(), r.Plane.State == controlplane.Unready:
		add(bad(hypershift.Progressing, reasonAsExpected, "nothing is going on"))
	default:
		add(metav1.Condition{Type: hypershift.Progressing, Status: metav1.ConditionTrue, Reason: why, Message: message})
	}
	switch {
	case failed != nil:
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue, Reason: string(failed.Reason),
			Message: failed.Message})
	case r.Plane.State == controlplane.Unready:
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue, Reason: "NotReady",
			Message: "not well: " + strings.Join(r.Plane.FailingParts, ", ")})
	case r.Plane.Store.Corrupt:
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue,
			Reason: string(cluster.ReasonEtcdCorrupt), Message: "etcd has found damage in its data"})
	case r.Plane.Store.Full:
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue,
			Reason: string(cluster.ReasonEtcdFull), Message: fmt.Sprintf("etcd is full (%d MiB): "+
				"the cluster answers reads and refuses writes; "+
				"delete objects, and it accepts writes again within a minute", r.Plane.Store.Quota>>20)})
	case r.Backup != nil && r.Backup.Failing != "":
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue,
			Reason: string(cluster.ReasonBackupFailing), Message: "the backup fails: " + r.Backup.Failing})
	case r.DrillFailed != "":
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue,
			Reason: string(cluster.ReasonDrillFailed), Message: r.DrillFailed})
	case len(r.IssuerProblems) > 0:
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue,
			Reason: string(cluster.ReasonIssuerUnreachable), Message: strings.Join(r.IssuerProblems, "; ")})
	default:
		add(bad(hypershift.Degraded, reasonAsExpected, "nothing is wrong"))
	}
	switch {
	case !r.HasIssuers:
	case len(r.IssuerProblems) > 0:
		add(bad(hypershift.ValidIDPConfiguration, string(cluster.ReasonIssuerUnreachable),
			strings.Join(r.IssuerProblems, "; ")))
	default:
		add(good(hypershift.ValidIDPConfiguration, "the keys of all issuers are known"))
	}
	switch { // a backup that has stored nothing yet, and does not fail, changes nothing
	case r.Backup != nil && r.Backup.Failing != "":
		add(bad(hypershift.BackedUp, string(cluster.ReasonBackupFailing), r.Backup.Failing))
	case r.DrillFailed != "":
		add(bad(hypershift.BackedUp, string(cluster.ReasonDrillFailed), r.DrillFailed))
	case r.Backup == nil:
	case !r.Backup.Stored.IsZero():
		add(good(hypershift.BackedUp, "every acknowledged write is stored within 10 s"))
	}
	return list
}

// reason returns why a plane does not serve.
func (r report) reason(failed *controlplane.Failure) (reason, message string) {
	switch {
	case failed != nil:
		return string(failed.Reason), failed.Message
	case r.sleeps() && r.Power == asleep:
		return "Asleep", "the plane sleeps; a connection wakes it"
	case r.sleeps():
		return "Waking", "the plane wakes up for who asked for it"
	case r.Plane.State == controlplane.Unready:
		return "NotReady", "not well: " + strings.Join(r.Plane.FailingParts, ", ")
	case r.Release == "" && r.Refused != nil:
		return r.Refused.Reason, r.Refused.Message
	case r.Release == "" && len(r.Problems) > 0:
		return reasonInvalid, strings.Join(r.Problems, "; ")
	case r.Release == "" && r.Paused:
		return reasonPaused, "spec.pausedUntil holds the first start up"
	case r.Order.needsDataToStart(r.Plane.LastStart) && r.Order.IsRecovery:
		return r.Order.recoveryReason()
	case r.Order.needsDataToStart(r.Plane.LastStart) && r.Order.isFailed():
		return string(cluster.ReasonRestoreFailed), "the data of the other cluster could not be restored; " +
			"delete this cluster and order another restore"
	case r.Order.needsDataToStart(r.Plane.LastStart), r.Order.isPrepared(), r.Order.isUnfinished():
		return string(cluster.ReasonRestoring), "the plane gets data from its backup"
	case r.upgrading():
		return "Upgrading", "the plane goes over to " + string(r.Release)
	}
	return "PlaneStarting", "the plane starts"
}
