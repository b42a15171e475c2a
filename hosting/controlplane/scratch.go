package controlplane

import (
	"errors"
	"time"
)

// ScratchNamespace is the namespace of scratch planes. No namespace of Kubernetes can have this name, so no
// HostedCluster is in it.
const ScratchNamespace = "_scratch"

// IsScratch reports whether the control plane is a scratch plane: made from a backup for a restore drill, and deleted
// after it. It is no customer's plane: it has no HostedCluster, status, route or backup, it is in no count of planes,
// and it claims no backups for its data, so that it ends no customer's plane.
func (id ID) IsScratch() bool { return id.Namespace == ScratchNamespace }

// ErrNoRoom is the error of a drill that must wait: its data leaves too little space on the disk, or a customer's
// restore is made.
var ErrNoRoom = errors.New("there is no room for a restore drill")

// ErrBadBackup is the error of a backup from which no data can be made.
var ErrBadBackup = errors.New("the backup cannot be restored")

// ScratchData describes the data of a scratch plane.
type ScratchData struct {
	Restores time.Time // every write acknowledged before is in the data
	// Revision is the one with which the scratch plane's etcd starts: at it, etcd has the restored data and nothing else.
	Revision int64
	// Expected are the keys that the customer's etcd had at the restored revision, and the revision in which each was
	// written last; nil when etcd has compacted that revision, or has too many keys to compare.
	Expected map[string]int64
}

// ScratchComparison is the result of a comparison of a scratch plane's data with what it should be.
type ScratchComparison struct {
	IsCompared bool // false: nobody can read any more what the data should be
	Objects    int  // keys that were restored
	Secrets    int  // of them, those of Secrets
	Different  int  // keys that are missing, that should not be there, or that have another revision
}
