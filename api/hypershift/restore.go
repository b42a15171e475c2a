package hypershift

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RestoreAnnotation of a HostedCluster is Atoll's: a RestoreOrder as JSON. hosting executes each order once, by its ID.
const RestoreAnnotation = "atoll.dev/restore"

// RestoreOrder orders that a plane gets the data that a plane had at a moment.
type RestoreOrder struct {
	ID string `json:"id"` // a-z, 0-9 and -; at most 63 characters
	At string `json:"at"` // RFC 3339
	// DryRun orders the list of changes only.
	DryRun bool `json:"dryRun,omitempty"`
	// Source is the HostedCluster whose data a new plane begins with; nil: the plane's own.
	Source *RestoreSource `json:"source,omitempty"`
}

// RestoreSource names a HostedCluster, of this or another management cluster with the same store of backups.
type RestoreSource struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// RestorePhase is the progress of a restore.
type RestorePhase string

// Phases of a restore.
const (
	RestoreWaiting   RestorePhase = "Waiting"   // the backup does not reach the moment yet
	RestorePreparing RestorePhase = "Preparing" // the data is made, or compared; the plane runs meanwhile
	RestoreReplacing RestorePhase = "Replacing" // the plane stops and starts with the data
	RestoreCompleted RestorePhase = "Completed"
	RestoreFailed    RestorePhase = "Failed" // nothing was changed
)

// IsFinal reports whether the phase is the last one of a restore.
func (p RestorePhase) IsFinal() bool { return p == RestoreCompleted || p == RestoreFailed }

// RestoreStatus is the state of the last order. No member is omitted: hosting merges the status into the stored one,
// and an omitted member would keep the value of an earlier order.
type RestoreStatus struct {
	ID          string       `json:"id"`
	At          string       `json:"at"`
	DryRun      bool         `json:"dryRun"`
	Phase       RestorePhase `json:"phase"`
	Message     string       `json:"message"`
	StartedAt   metav1.Time  `json:"startedAt"`
	CompletedAt *metav1.Time `json:"completedAt"`
	// RestoredTo is the moment before which every acknowledged write is restored.
	RestoredTo string          `json:"restoredTo"`
	Changes    json.RawMessage `json:"changes"` // of a dry run: controlplane.Changes
}

// BackupStatus is the part of the past to which a plane can be restored.
type BackupStatus struct {
	From string `json:"from"` // RFC 3339; "": there is no backup, or all are damaged
	// To is set when the backup does not go on: the plane is stopped, or the backup fails. Else it is the present.
	To     string        `json:"to"`
	Chains []BackupChain `json:"chains"` // the oldest first
}

// BackupChain is one backup: a snapshot, and the changes after it unless they have expired.
type BackupChain struct {
	Taken       string `json:"taken"` // RFC 3339
	EverySecond bool   `json:"everySecond,omitempty"`
	Damaged     bool   `json:"damaged,omitempty"` // a restore could not read it
}
