// Package backup copies the etcd of control planes to an object store, continuously, and reads the copies back.
//
// A chain is one snapshot and the log of all changes after it. A Follower owns the chains of one plane: it takes a
// snapshot, watches etcd from then on, and stores the changes every few seconds; after an hour it begins the next
// chain. Fetch returns the files from which "atoll-kube restore" makes a plane's data as of a chosen second.
//
// Below the store's prefix:
//
//	NAMESPACE/NAME/CHAIN/order-00000007-TIME the chain's Order, stored first: the plane's seventh chain, say
//	NAMESPACE/NAME/CHAIN/snapshot-00000000   a part of the compressed snapshot, of 1 MiB; earlier versions: 2 MiB
//	NAMESPACE/NAME/CHAIN/keys                the plane's keys and certificates
//	NAMESPACE/NAME/CHAIN/chain               Manifest, written last: a chain without it is not restored from
//	NAMESPACE/NAME/CHAIN/log-00000001        segment: the changes of a few seconds
//	NAMESPACE/NAME/CHAIN/mark                mark: nothing changed after the last segment until a moment
//	NAMESPACE/NAME/move-ID/...               the data of a plane that moves; see handover
//	.deleted/NAMESPACE/NAME                  tombstone: the plane's cluster was deleted; with the owner of its data
//	.owners/NAMESPACE/NAME                   the owners of the plane's data, the last one last, sealed (decision 156)
//
// The name of a chain begins with the time of its snapshot. The order of a plane's chains is that of their generations:
// a plane moves between machines whose clocks differ, and a clock can be set back (see Order, and decision 153).
//
// Each object is encrypted by itself (package envelope) under the chain's data key, which a KMS wraps. An object that
// is changed, cut short, or stored under another name cannot be opened; the manifest has a checksum of each part, and
// each segment one of the object before it, so that a restore detects a missing object.
//
// Time. A sample is a moment and the revision that etcd had after it. Every write that was acknowledged before the
// moment is in the revision, and every write that began after the revision was read is not. The plane takes a sample in
// each second, and the follower reads them every few seconds; it asks the plane of an older program for its revision
// each second (decision 191). The log has one sample for each second in which something changed, so a restore to a
// second has every write acknowledged before it, and none that began later than the next sample. Times of different
// periods of the clock (Order.Period) are never compared: a moment that a clock showed twice is the later one.
//
// The package is a tool: hosting, local and cli import it. It imports envelope, envelope/kms, plane and internal
// packages.
package backup

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"atoll.dev/envelope"
)

// ErrNotFound is the error of an object that the store does not have.
var ErrNotFound = errors.New("no such object")

// ErrCorrupt is the error of an object whose content is not the one that was stored under its name.
var ErrCorrupt = envelope.ErrCorrupt

// Store keeps objects. Its methods may be called by many goroutines. Package backup/storetest is the suite that each
// implementation passes.
type Store interface {
	// Put stores an object, or replaces it. nil means that the store has promised to keep it.
	Put(ctx context.Context, name string, content []byte) error
	// Get returns an object, or ErrNotFound.
	Get(ctx context.Context, name string) ([]byte, error)
	// List returns the names that begin with prefix, in the order of their bytes.
	List(ctx context.Context, prefix string) ([]string, error)
	// Delete removes an object. It is no error when there is none.
	Delete(ctx context.Context, name string) error
	// Age returns how long ago an object was stored, to the second, or ErrNotFound. It compares two times of the store's
	// own clock: the clock of this machine may be wrong.
	Age(ctx context.Context, name string) (time.Duration, error)
}

// Plane names the control plane of a backup: namespace and name of its HostedCluster.
type Plane struct{ Namespace, Name string }

func (p Plane) String() string { return p.Namespace + "/" + p.Name }

func (p Plane) prefix() string { return p.Namespace + "/" + p.Name + "/" }

// chainTime is the beginning of a chain's name.
const chainTime = "20060102T150405.000Z"

var chainName = regexp.MustCompile(`^(\d{8}T\d{6}\.\d{3}Z)-[0-9a-f]{8}$`)

// parseChain returns the chain with a name.
func parseChain(name string) (c Chain, err error) {
	m := chainName.FindStringSubmatch(name)
	if m == nil {
		return c, fmt.Errorf("%q is not a name of a chain", name)
	}
	c.Name = name
	c.Taken, err = time.Parse(chainTime, m[1])
	return c, err
}

// Names of a chain's objects.
const (
	orderPrefix    = "order-"
	manifestObject = "chain"
	keysObject     = "keys"
	markObject     = "mark"
	partPrefix     = "snapshot-"
	segmentPrefix  = "log-"
)

func partName(n int) string    { return fmt.Sprintf("%s%08d", partPrefix, n) }
func segmentName(n int) string { return fmt.Sprintf("%s%08d", segmentPrefix, n) }

// splitName splits the name of an object into chain and the object's own name.
func splitName(name string) (c Chain, object string, ok bool) {
	f := strings.Split(name, "/")
	if len(f) != 4 {
		return Chain{}, "", false
	}
	c, err := parseChain(f[2])
	return c, f[3], err == nil
}
