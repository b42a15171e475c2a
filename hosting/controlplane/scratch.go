package controlplane

import (
	"errors"
	"time"
)

// ScratchNamespace is the namespace of scratch planes. No namespace of Kubernetes can have this name, so no
// HostedCluster is in it.
const ScratchNamespace = "_scratch"

// IsScratch reports whether the control plane is a scratch plane: made from a backup for a restore drill, and deleted
// after it. It has no HostedCluster, status, route or backup, no count of planes includes it, and it never claims the
// backups of the plane from which it was made.
func (id ID) IsScratch() bool { return id.Namespace == ScratchNamespace }

// ErrNoRoom is the error of a drill that must wait: its data leaves too little space on the disk, or a customer's
// restore is made.
var ErrNoRoom = errors.New("there is no room for a restore drill")

// ErrBadBackup is the error of a backup from which no data can be made.
var ErrBadBackup = errors.New("the backup cannot be restored")

// ScratchData describes the data of a scratch plane.
type ScratchData struct {
	Restores time.Time // every write acknowledged before is in the data
	// Revision is the revision with which the scratch plane's etcd starts: there etcd has exactly the restored data.
	Revision int64
	// Expected are the keys that the customer's etcd had at the restored revision, and the revision in which each was
	// written last; nil when etcd has compacted that revision, or has too many keys to compare.
	Expected map[string]int64
}

// ScratchComparison is the result of a comparison of a scratch plane's data with ScratchData.Expected.
type ScratchComparison struct {
	IsCompared bool // false: Expected is nil, and only Objects and Secrets are set
	Objects    int  // keys that were restored
	Secrets    int  // restored keys of Secrets
	Different  int  // keys that are missing, that should not be there, or that have another revision
}
