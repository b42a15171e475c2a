package cluster

import (
	"encoding/json"
	"fmt"
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
	var members map[string]json.RawMessage
	if err := json.Unmarshal(spec, &members); err != nil {
		return nil, nil, fmt.Errorf("reading the stored spec: %w", err)
	}
	text := members[restoreMember]
	if text == nil {
		return spec, nil, nil
	}
	delete(members, restoreMember)
	var order RestoreOrder
	if err := json.Unmarshal(text, &order); err != nil {
		return nil, nil, fmt.Errorf("reading the order of a restore: %w", err)
	}
	rest, err := json.Marshal(members)
	return rest, &order, err
}

// AddRestore returns a spec with the order of a restore; nil changes nothing.
func AddRestore(spec json.RawMessage, order *RestoreOrder) (json.RawMessage, error) {
	if order == nil {
		return spec, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(spec, &members); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	members[restoreMember] = text
	return json.Marshal(members)
}
