package cluster

import (
	"encoding/json"
	"time"
)

// RestoreOrder is the member "restore" of a cluster's stored spec: the last restore that a customer has ordered. The
// fronts write it by a request of its own; customers neither read nor change it with the spec. It has the shape of
// HostedCluster's annotation.
type RestoreOrder struct {
	ID     string         `json:"id"`
	At     time.Time      `json:"at"`
	DryRun bool           `json:"dryRun,omitempty"`
	Source *RestoreSource `json:"source,omitempty"` // of a clone: the HostedCluster with whose data it begins
}

// RestoreSource names a HostedCluster.
type RestoreSource struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// RestoreData is the state of a restore in a report of AdapterHostedCluster.
type RestoreData struct {
	ID          string          `json:"id"`
	At          string          `json:"at"`
	DryRun      bool            `json:"dryRun"`
	Phase       string          `json:"phase"`
	Message     string          `json:"message"`
	StartedAt   string          `json:"startedAt"`
	CompletedAt string          `json:"completedAt"`
	RestoredTo  string          `json:"restoredTo"`
	Changes     json.RawMessage `json:"changes"`
}

// BackupData is the part of the past to which a cluster can be restored, in a report of AdapterHostedCluster.
type BackupData struct {
	From   string        `json:"from"`
	To     string        `json:"to"` // "" while the backup goes on
	Chains []BackupChain `json:"chains"`
}

// BackupChain is one backup.
type BackupChain struct {
	Taken       string `json:"taken"`
	EverySecond bool   `json:"everySecond"`
	Damaged     bool   `json:"damaged"` // a restore could not read it
}

// Phases of a restore that has ended.
const (
	RestoreCompleted = "Completed"
	RestoreFailed    = "Failed"
)

// IsFinal reports whether the restore has ended.
func (d RestoreData) IsFinal() bool { return d.Phase == RestoreCompleted || d.Phase == RestoreFailed }

const restoreMember = "restore"

// CutRestore returns a stored spec without the order of a restore, and the order; nil: there is none.
func CutRestore(spec json.RawMessage) (json.RawMessage, *RestoreOrder, error) {
	return cutOrder[RestoreOrder](spec, restoreMember)
}

// AddRestore returns a spec with the order of a restore; nil changes nothing.
func AddRestore(spec json.RawMessage, order *RestoreOrder) (json.RawMessage, error) {
	if order == nil {
		return spec, nil
	}
	return addOrder(spec, restoreMember, order)
}
