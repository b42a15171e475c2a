package backup

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Lock is Object Lock of an S3-compatible store: for a time nobody can delete or replace the stored version of an
// object, also not with the credentials that stored it. The bucket needs versions and Object Lock.
type Lock struct {
	For time.Duration // from the upload on; 0: nothing is locked
	// Mode is governance, which a principal with s3:BypassGovernanceRetention can lift, or compliance, which nobody
	// can.
	Mode types.ObjectLockMode
}

// maxLockDays bounds a lock: a plane's chains of a month have some 660,000 objects, and a list has at most listLimit.
const maxLockDays = 30

// parseLock returns the lock of a Config.
func parseLock(days int, mode string) (Lock, error) {
	switch {
	case days == 0 && mode == "":
		return Lock{}, nil
	case days < 1 || days > maxLockDays:
		return Lock{}, fmt.Errorf("lock_days %d is not 1 to %d", days, maxLockDays)
	}
	l := Lock{For: time.Duration(days) * 24 * time.Hour}
	switch mode {
	case "", "governance":
		l.Mode = types.ObjectLockModeGovernance
	case "compliance":
		l.Mode = types.ObjectLockModeCompliance
	default:
		return Lock{}, fmt.Errorf("lock_mode %q is not governance or compliance", mode)
	}
	return l, nil
}

// isReplaced reports whether objects of this name are replaced or removed in normal operation: the mark of a chain or
// archive, the lists of owners, the tombstones, and the objects of a move. Such objects are not locked: the store would
// keep each of their versions.
func isReplaced(name string) bool {
	for _, prefix := range []string{ownersPrefix, deletedPrefix} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	f := strings.Split(name, "/")
	return path.Base(name) == markObject || len(f) > 2 && strings.HasPrefix(f[2], movePrefix)
}

// lockMargin is added to the time for which objects are kept when a store locks them: a chain gets objects until the
// next one is complete, and the clocks of two machines differ.
const lockMargin = time.Hour

// KeepLocked returns how long the objects of a store are kept: d without a lock, and at least as long as the store
// locks them. A deletion of a locked object would only hide it.
func KeepLocked(store Store, d time.Duration) time.Duration {
	if s, isS3 := store.(*S3); isS3 && s.o.Lock.For > 0 {
		return max(d, s.o.Lock.For+lockMargin)
	}
	return d
}
