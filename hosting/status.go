package hosting

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
)

// observation is all that a HostedCluster's status is made of.
type observation struct {
	Generation int64
	Problems   []string // of the spec
	Refused    *refusal // of the release
	Paused     bool
	PauseError error
	Failure    *failure // of hosting itself; a plane's own is in Plane

	Release  string // version that is to run; "" when there is none yet
	Image    string // that names it
	Plane    view
	Power    powerState
	Endpoint hypershift.APIEndpoint
	Secret   string // with the administrator's kubeconfig; "" before there is one
}

// historyKept is how many versions a status remembers.
const historyKept = 20

// decideStatus is the status of a HostedCluster, in HyperShift's words.
// Nothing in it changes without meaning: each change is told to the region.
func decideStatus(before hypershift.HostedClusterStatus, o observation, now time.Time) hypershift.HostedClusterStatus {
	if o.Power == asleep && o.Plane.State != down && o.Plane.State != failing {
		return before // it is awake until its process has ended
	}
	if o.Plane.Found && len(before.Conditions) > 0 {
		return before
	}
	s := before
	s.Conditions = slices.Clone(before.Conditions)
	s.Version = decideVersion(before.Version, o, now)
	s.Power = hypershift.Power(o.Power)
	if o.Power == goingToSleep {
		s.Power = hypershift.Awake
	}
	if o.Plane.Record.Born {
		s.ControlPlaneEndpoint = o.Endpoint
	}
	if o.Secret != "" {
		s.KubeConfig = &hypershift.LocalObject{Name: o.Secret}
	}
	for _, c := range decideConditions(o) {
		c.ObservedGeneration = o.Generation
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return s
}

// lived says whether a status tells of a plane that has been ready once.
func lived(s hypershift.HostedClusterStatus) bool {
	return s.Version != nil && slices.ContainsFunc(s.Version.History, func(u hypershift.UpdateHistory) bool {
		return u.State == hypershift.Completed
	})
}

// serves says whether the plane answers and runs what it is to run.
func (o observation) serves() bool {
	return o.Plane.State == ready && o.Plane.Record.Release == o.Release
}

// sleeps says whether the plane is down because nobody asks for it, or wakes
// up because somebody does: who asks is answered.
func (o observation) sleeps() bool {
	return (o.Power == asleep || o.Power == waking) && o.Plane.Record.Born && o.Plane.Failure == nil
}

// upgrading says whether the plane is between two releases.
func (o observation) upgrading() bool {
	return o.Release != "" && o.Plane.Record.Born && (o.Plane.Record.Release != o.Release)
}

func decideVersion(before *hypershift.ClusterVersionStatus, o observation,
	now time.Time) *hypershift.ClusterVersionStatus {
	if o.Release == "" {
		return before
	}
	v := hypershift.ClusterVersionStatus{Desired: hypershift.VersionRelease{Version: o.Release, Image: o.Image},
		ObservedGeneration: o.Generation}
	if before != nil {
		v.History = slices.Clone(before.History)
	}
	at := metav1.NewTime(now.Truncate(time.Second))
	if len(v.History) == 0 || v.History[0].Version != o.Release {
		v.History = slices.Insert(v.History, 0, hypershift.UpdateHistory{State: hypershift.Partial, StartedTime: at,
			Version: o.Release, Image: o.Image})
	}
	if first := &v.History[0]; first.State == hypershift.Partial && o.serves() {
		first.State, first.CompletionTime = hypershift.Completed, &at
	}
	v.History = v.History[:min(len(v.History), historyKept)]
	return &v
}

func decideConditions(o observation) []metav1.Condition {
	good := func(kind, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reasonAsExpected, Message: message}
	}
	bad := func(kind, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	failed := o.Failure
	if failed == nil {
		failed = o.Plane.Failure
	}
	var list []metav1.Condition
	add := func(c metav1.Condition) { list = append(list, c) }

	switch {
	case len(o.Problems) > 0:
		add(bad(hypershift.ValidConfiguration, reasonInvalid, strings.Join(o.Problems, "; ")))
	default:
		add(good(hypershift.ValidConfiguration, "the configuration is valid"))
	}
	add(good(hypershift.SupportedHostedCluster, "hosting runs clusters of this kind"))
	if o.Refused != nil {
		add(bad(hypershift.ValidReleaseImage, o.Refused.Reason, o.Refused.Message))
	} else {
		add(good(hypershift.ValidReleaseImage, "the release is in the catalogue"))
	}
	switch {
	case o.Paused:
		add(bad(hypershift.ReconciliationActive, reasonPaused,
			"spec.pausedUntil holds changes up; the plane stays as it is"))
	case o.PauseError != nil:
		add(good(hypershift.ReconciliationActive, "spec.pausedUntil is ignored: "+o.PauseError.Error()))
		list[len(list)-1].Reason = reasonInvalidPause
	default:
		add(good(hypershift.ReconciliationActive, "the cluster is kept as its spec says"))
	}
	if failed != nil {
		add(bad(hypershift.ReconciliationSucceeded, failed.Reason, failed.Message))
	} else {
		add(good(hypershift.ReconciliationSucceeded, "nothing failed"))
	}

	// What the plane stands on: a directory, a port, a program.
	switch {
	case failed != nil && failed.Reason != failedPlane && failed.Reason != failedHung:
		add(bad(hypershift.InfrastructureReady, failed.Reason, failed.Message))
	case o.Plane.Record.Port == 0:
		add(bad(hypershift.InfrastructureReady, "WaitingOnInfrastructureReady", "the plane has no place yet"))
	default:
		add(good(hypershift.InfrastructureReady, "directory, port and program of the plane are there"))
	}

	why, message := o.reason(failed)
	probe := func(kind string, well bool, text string) {
		switch {
		case (o.Plane.State == ready || o.Plane.State == unready) && well:
			add(good(kind, text))
		case o.Plane.State == unready:
			add(bad(kind, "NotReady", "not well: "+strings.Join(o.Plane.Unwell, ", ")))
		default:
			add(bad(kind, why, message))
		}
	}
	etcd := !slices.Contains(o.Plane.Unwell, "etcd") && !slices.Contains(o.Plane.Unwell, allParts)
	probe(hypershift.EtcdAvailable, etcd, "etcd answers")
	probe(hypershift.KubeAPIServerAvailable, len(o.Plane.Unwell) == 0, "the API server answers")

	switch {
	case o.Plane.State == ready:
		add(good(hypershift.Available, "the hosted control plane is available"))
	case o.sleeps():
		add(metav1.Condition{Type: hypershift.Available, Status: metav1.ConditionTrue, Reason: why, Message: message})
	default:
		add(bad(hypershift.Available, why, message))
	}
	switch {
	case o.Refused != nil, len(o.Problems) > 0:
		reason, text := reasonInvalid, strings.Join(o.Problems, "; ")
		if o.Refused != nil {
			reason, text = o.Refused.Reason, o.Refused.Message
		}
		add(bad(hypershift.Progressing, reason, "the plane stays as it is: "+text))
	case o.Power == asleep, o.serves(), o.Plane.State == unready:
		add(bad(hypershift.Progressing, reasonAsExpected, "nothing is going on"))
	default:
		add(metav1.Condition{Type: hypershift.Progressing, Status: metav1.ConditionTrue, Reason: why, Message: message})
	}
	switch {
	case failed != nil:
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue, Reason: failed.Reason,
			Message: failed.Message})
	case o.Plane.State == unready:
		add(metav1.Condition{Type: hypershift.Degraded, Status: metav1.ConditionTrue, Reason: "NotReady",
			Message: "not well: " + strings.Join(o.Plane.Unwell, ", ")})
	default:
		add(bad(hypershift.Degraded, reasonAsExpected, "nothing is wrong"))
	}
	return list
}

// reason is why a plane does not serve.
func (o observation) reason(failed *failure) (reason, message string) {
	switch {
	case failed != nil:
		return failed.Reason, failed.Message
	case o.sleeps() && o.Power == asleep:
		return "Asleep", "the plane sleeps; a connection wakes it"
	case o.sleeps():
		return "Waking", "the plane wakes up for who asked for it"
	case o.Plane.State == unready:
		return "NotReady", "not well: " + strings.Join(o.Plane.Unwell, ", ")
	case o.Release == "" && o.Refused != nil:
		return o.Refused.Reason, o.Refused.Message
	case o.Release == "" && len(o.Problems) > 0:
		return reasonInvalid, strings.Join(o.Problems, "; ")
	case o.Release == "" && o.Paused:
		return reasonPaused, "spec.pausedUntil holds the first start up"
	case o.upgrading():
		return "Upgrading", "the plane goes over to " + o.Release
	}
	return "PlaneStarting", "the plane starts"
}
