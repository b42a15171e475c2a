package hypershift

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// UpgradePhase is the progress of the last upgrade of a plane.
type UpgradePhase string

// Phases of an upgrade. The plane runs To, in Failed and RollingBack From.
const (
	UpgradeRuns       UpgradePhase = "Upgrading"      // the plane has not been ready with To yet
	UpgradeSoaks      UpgradePhase = "Soaking"        // To serves; the plane can go back to From
	UpgradeCompleted  UpgradePhase = "Completed"      // the soak has ended: the plane does not go back
	UpgradeFailed     UpgradePhase = "Failed"         // To did not become ready: the plane went back by itself
	UpgradeRollsBack  UpgradePhase = "RollingBack"    // the spec has From again, which is not ready yet
	UpgradeRolledBack UpgradePhase = "RolledBack"     // From serves, as the spec orders
	RollbackFailed    UpgradePhase = "RollbackFailed" // From did not become ready; the plane went on with To
)

// IsFinal reports whether the upgrade has ended, and the next release of the spec begins another one.
func (p UpgradePhase) IsFinal() bool { return p == UpgradeCompleted || p == UpgradeRolledBack }

// UpgradeStatus is the state of the last upgrade of a plane to another release. hosting writes a phase before it acts
// on the phase. No member is omitted: hosting merges the status into the stored one.
type UpgradeStatus struct {
	From    string       `json:"from"`
	To      string       `json:"to"`
	Served  string       `json:"served"` // release with which the plane was ready last: From or To
	Phase   UpgradePhase `json:"phase"`
	Message string       `json:"message"` // why it failed, for the cluster's owner

	StartedAt metav1.Time `json:"startedAt"`
	// LaunchedAt is the first start with the release of the phase; the limit for its readiness counts from there.
	LaunchedAt *metav1.Time `json:"launchedAt"`
	// SoakUntil is the end of the time in which the plane can go back; null before To was ready.
	SoakUntil   *metav1.Time `json:"soakUntil"`
	CompletedAt *metav1.Time `json:"completedAt"`

	// EmulatedVersion is the minor version whose APIs, features and form of stored objects the plane keeps until the end
	// of the soak; "" when From has the same minor version.
	EmulatedVersion string `json:"emulatedVersion"`
	// Copy names the copy of the data of before the upgrade; "" once From was ready again after a failure. CopyUsed is
	// true when the plane went back with it: writes after StartedAt are lost then.
	Copy     string `json:"copy"`
	CopyUsed bool   `json:"copyUsed"`
}
