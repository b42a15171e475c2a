package controlplane

import "time"

// Recovery is the ID of the RestoreOrder with which hosting recovers a plane that was lost together with its management
// cluster. It is not possible as the ID of a customer's order.
const Recovery = "recovery.latest"

// RestoreOrder orders data for a control plane from a backup.
type RestoreOrder struct {
	ID     string    // Recovery: a plane without a backup needs no data
	Source ID        // control plane of the backup: the same one, or the one that is cloned
	At     time.Time // every write acknowledged before is restored; zero: the latest moment that is stored
	DryRun bool      // nothing is replaced: only the changes are computed
	// Release is the release whose program makes the data.
	Release Version
}

// PreparationState is the state of the data of a restore.
type PreparationState string

// States of a Preparation.
const (
	PreparationWaits  PreparationState = "waits"  // the backup does not reach the moment yet
	PreparationRuns   PreparationState = "runs"   // the data is read and made
	PreparationDone   PreparationState = "done"   // the data is complete; of a dry run: the changes are known
	PreparationFailed PreparationState = "failed" // it is not tried again
	PreparationNone   PreparationState = "none"   // of a Recovery: the plane has no backup, so it was not lost
)

// Names in the staging directory of a restore. The directory "etcd" has the data.
const (
	// StagedKeys is a directory with the keys and certificates of the plane. A plane without keys takes them together
	// with the data.
	StagedKeys = "pki"
	// StagedPast is a file with a JSON list of the orders that the plane had executed before. The runtime adds them to
	// the plane's record, so that none of them runs again.
	StagedPast = "past.json"
)

// Preparation is the state of one RestoreOrder. The data is made beside the plane's, while the plane runs.
type Preparation struct {
	State    PreparationState
	Message  string    // the reason why it waits or failed
	Restores time.Time // the data has every write acknowledged before this time; set when the preparation is done
	Changes  *Changes  // set when the preparation of a dry run is done
	// Departure is how the plane ran before; set when the preparation of an arrival is done. That of a recovery has the
	// executed orders, and as Served the release with which the plane was ready last; "" when the backup does not name it.
	Departure *Departure
}

// Changes are the objects of a plane that a restore would change.
type Changes struct {
	Created int `json:"created"` // objects that were deleted after the restored moment
	Updated int `json:"updated"` // objects that were changed after it
	Deleted int `json:"deleted"` // objects that were created after it
	// Kinds lists the kinds with the most changes first. Kinds and names are bounded; the counts are complete.
	Kinds []KindChanges `json:"kinds,omitempty"`
	Left  int           `json:"left,omitempty"` // kinds that the list leaves out
}

// KindChanges are the changes of one kind.
type KindChanges struct {
	Kind    string   `json:"kind"` // plural, with the group if it has one: pods, widgets.example.com
	Created int      `json:"created,omitempty"`
	Updated int      `json:"updated,omitempty"`
	Deleted int      `json:"deleted,omitempty"`
	Names   []string `json:"names,omitempty"` // some of them: NAMESPACE/NAME, or NAME
}

// BackupWindow is the period to which a plane can be restored.
type BackupWindow struct {
	From   time.Time // of the oldest backup that is not damaged; zero: there is none
	Stored time.Time // the store has every write acknowledged before this time, as last known
	Chains []BackupChain
}

// BackupChain is one backup in the list of a plane's, the oldest first.
type BackupChain struct {
	Taken time.Time `json:"taken"`
	// EverySecond: each second from Taken to the next chain can be restored; else only that of Taken.
	EverySecond bool `json:"everySecond,omitempty"`
	// Damaged: a restore could not read it. Its moments restore from another backup, if one has them.
	Damaged bool `json:"damaged,omitempty"`
}
