package hosting

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// decideConditions computes all conditions, without times and generation.
func decideConditions(r report) []metav1.Condition {
	list := []metav1.Condition{
		r.validConfiguration(),
		asExpected(hypershift.SupportedHostedCluster, "hosting runs clusters of this kind"),
		r.validReleaseImage(),
		r.reconciliationActive(),
		r.reconciliationSucceeded(),
		r.infrastructureReady(),
		r.etcdAvailableCondition(),
		r.kubeAPIServerAvailableCondition(),
		r.availableCondition(),
		r.progressingCondition(),
		r.degradedCondition(),
	}
	if r.HasIssuers {
		list = append(list, r.validIDPConfiguration())
	}
	if c := r.backedUpCondition(); c.Type != "" {
		list = append(list, c)
	}
	return list
}

// asExpected returns a condition that is True because all is well.
func asExpected(kind, message string) metav1.Condition {
	return trueCondition(kind, reasonAsExpected, message)
}

func trueCondition(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func falseCondition(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func (r report) validConfiguration() metav1.Condition {
	if len(r.Problems) > 0 {
		return falseCondition(hypershift.ValidConfiguration, reasonInvalid, strings.Join(r.Problems, "; "))
	}
	return asExpected(hypershift.ValidConfiguration, "the configuration is valid")
}

func (r report) validReleaseImage() metav1.Condition {
	if r.Refused != nil {
		return falseCondition(hypershift.ValidReleaseImage, r.Refused.Reason, r.Refused.Message)
	}
	return asExpected(hypershift.ValidReleaseImage, "the release is in the catalogue")
}

func (r report) reconciliationActive() metav1.Condition {
	switch {
	case r.Paused:
		return falseCondition(hypershift.ReconciliationActive, reasonPaused,
			"spec.pausedUntil holds changes up; the plane stays as it is")
	case r.PauseError != nil:
		return trueCondition(hypershift.ReconciliationActive, reasonInvalidPause,
			"spec.pausedUntil is ignored: "+r.PauseError.Error())
	}
	return asExpected(hypershift.ReconciliationActive, "the cluster is kept as its spec requires")
}

func (r report) reconciliationSucceeded() metav1.Condition {
	if failed := r.failure(); failed != nil {
		return falseCondition(hypershift.ReconciliationSucceeded, string(failed.Reason), failed.Message)
	}
	return asExpected(hypershift.ReconciliationSucceeded, "nothing failed")
}

// infrastructureReady is about the plane's directory, port and program.
func (r report) infrastructureReady() metav1.Condition {
	failed := r.failure()
	switch {
	case failed != nil && failed.Reason != controlplane.PlaneFailed && failed.Reason != controlplane.PlaneHangs &&
		failed.Reason != controlplane.OutOfMemory:
		return falseCondition(hypershift.InfrastructureReady, string(failed.Reason), failed.Message)
	case r.Plane.Backend == "":
		return falseCondition(hypershift.InfrastructureReady, "WaitingOnInfrastructureReady", "the plane has no place yet")
	}
	message := "directory, port and program of the plane are there"
	if len(r.Plane.Walls) > 0 {
		message += "; walls: " + strings.Join(r.Plane.Walls, ", ")
	}
	return asExpected(hypershift.InfrastructureReady, message)
}

func (r report) etcdAvailableCondition() metav1.Condition {
	var failing []string // without the API server nobody can ask etcd
	for _, part := range r.Plane.FailingParts {
		if part == "etcd" || part == controlplane.APIServer {
			failing = append(failing, part)
		}
	}
	return r.partCondition(hypershift.EtcdAvailable, failing, "etcd answers")
}

func (r report) kubeAPIServerAvailableCondition() metav1.Condition {
	return r.partCondition(hypershift.KubeAPIServerAvailable, r.Plane.FailingParts, "the API server answers")
}

// partCondition returns the condition of a part of a running plane. failing are the parts for whose failure it is
// False.
func (r report) partCondition(kind string, failing []string, message string) metav1.Condition {
	isRunning := r.Plane.State == controlplane.Ready || r.Plane.State == controlplane.Unready
	switch {
	case isRunning && len(failing) == 0:
		return asExpected(kind, message)
	case r.Plane.State == controlplane.Unready:
		return falseCondition(kind, "NotReady", r.failingParts())
	}
	why, text := r.reason()
	return falseCondition(kind, why, text)
}

// failingParts returns the message about a plane that runs and is not ready.
func (r report) failingParts() string { return "not well: " + strings.Join(r.Plane.FailingParts, ", ") }

func (r report) availableCondition() metav1.Condition {
	why, message := r.reason()
	switch {
	case r.Plane.State == controlplane.Ready:
		return asExpected(hypershift.Available, "the hosted control plane is available")
	case r.sleeps():
		return trueCondition(hypershift.Available, why, message)
	}
	return falseCondition(hypershift.Available, why, message)
}

func (r report) progressingCondition() metav1.Condition {
	why, message := r.reason()
	const stays = "the plane stays as it is: "
	switch {
	case r.Refused != nil:
		return falseCondition(hypershift.Progressing, r.Refused.Reason, stays+r.Refused.Message)
	case len(r.Problems) > 0:
		return falseCondition(hypershift.Progressing, reasonInvalid, stays+strings.Join(r.Problems, "; "))
	case r.Delayed != "":
		return trueCondition(hypershift.Progressing, "Upgrading", r.Delayed)
	case r.Power == asleep, r.serves(), r.Plane.State == controlplane.Unready:
		return falseCondition(hypershift.Progressing, reasonAsExpected, "nothing is going on")
	}
	return trueCondition(hypershift.Progressing, why, message)
}

// degradedCondition has the most urgent of all failures.
func (r report) degradedCondition() metav1.Condition {
	const kind = hypershift.Degraded
	failed := r.failure()
	switch {
	case failed != nil:
		return trueCondition(kind, string(failed.Reason), failed.Message)
	case r.Plane.State == controlplane.Unready:
		return trueCondition(kind, "NotReady", r.failingParts())
	case r.Plane.Store.Corrupt:
		return trueCondition(kind, string(cluster.ReasonEtcdCorrupt), "etcd has found damage in its data")
	case r.Plane.Store.Full:
		return trueCondition(kind, string(cluster.ReasonEtcdFull), fmt.Sprintf("etcd is full (%d MiB): "+
			"the cluster answers reads and refuses writes; "+
			"delete objects, and it accepts writes again within a minute", r.Plane.Store.Quota>>20))
	case r.Backup != nil && r.Backup.Failing != "":
		return trueCondition(kind, string(cluster.ReasonBackupFailing), "the backup fails: "+r.Backup.Failing)
	case r.DrillFailed != "":
		return trueCondition(kind, string(cluster.ReasonDrillFailed), r.DrillFailed)
	case len(r.IssuerProblems) > 0:
		return trueCondition(kind, string(cluster.ReasonIssuerUnreachable), strings.Join(r.IssuerProblems, "; "))
	}
	return falseCondition(kind, reasonAsExpected, "nothing is wrong")
}

// validIDPConfiguration is about the issuers of tokens. A cluster without issuers does not have the condition.
func (r report) validIDPConfiguration() metav1.Condition {
	if len(r.IssuerProblems) > 0 {
		return falseCondition(hypershift.ValidIDPConfiguration, string(cluster.ReasonIssuerUnreachable),
			strings.Join(r.IssuerProblems, "; "))
	}
	return asExpected(hypershift.ValidIDPConfiguration, "the keys of all issuers are known")
}

// backedUpCondition returns the condition of the backup. It has no type while the condition keeps its state: no
// backup is made, or one has stored nothing yet and does not fail.
func (r report) backedUpCondition() metav1.Condition {
	switch {
	case r.Backup != nil && r.Backup.Failing != "":
		return falseCondition(hypershift.BackedUp, string(cluster.ReasonBackupFailing), r.Backup.Failing)
	case r.DrillFailed != "":
		return falseCondition(hypershift.BackedUp, string(cluster.ReasonDrillFailed), r.DrillFailed)
	case r.Backup != nil && !r.Backup.Stored.IsZero():
		return asExpected(hypershift.BackedUp, "the backup goes on")
	}
	return metav1.Condition{}
}

// reason returns the state of a plane that does not serve as ordered: what has failed, what it waits for, or that it
// sleeps.
func (r report) reason() (reason, message string) {
	failed := r.failure()
	switch {
	case failed != nil:
		return string(failed.Reason), failed.Message
	case r.sleeps() && r.Power == asleep:
		return "Asleep", "the plane sleeps; a connection wakes it"
	case r.sleeps():
		return "Waking", "the plane wakes up on demand"
	case r.Plane.State == controlplane.Unready:
		return "NotReady", r.failingParts()
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
