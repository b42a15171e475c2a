package hosting

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/api/rotation"
	"atoll.dev/backup"
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

// forbidsChanges reports whether the spec is invalid, refused or paused, so that the plane stays as it is.
func (r report) forbidsChanges() bool { return len(r.Problems) > 0 || r.Refused != nil || r.Paused }

// failure returns what has failed: hosting's own failure before the plane's; nil: nothing.
func (r report) failure() *controlplane.Failure {
	if r.Failure != nil {
		return r.Failure
	}
	return r.Plane.Failure
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
