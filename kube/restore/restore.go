// Package restore makes the data directory of an etcd member from a snapshot and a log of changes.
//
// The snapshot is what etcd's Maintenance.Snapshot streams, its checksum included. The log has the changes since, each
// an mvccpb.Event as a watch of all keys delivers it, behind its length as an unsigned varint, in the order of their
// revisions. etcd counts one revision for each write, so that a missing change shows as a gap.
//
// After a restore the revision is Bump higher than that of the last change, and all before is compacted. So a
// controller that has seen later resource versions than those restored lists again, and never takes an old object for
// a newer one.
package restore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

const (
	// eventLimit bounds one change: etcd takes requests of 1.5 MiB.
	eventLimit = 16 << 20
	// leaseSeconds is the life of keys whose lease began after the snapshot: the longest that Kubernetes gives, to Events.
	leaseSeconds = 3600
	// commitEvery is after how many changes the database may commit.
	commitEvery = 1000
)

// Options are what is restored, and where.
type Options struct {
	Snapshot string // file
	Log      string // file; "" for none
	Dir      string // etcd's data directory; it must not exist
	Bump     uint64 // by how much the revision rises
}

// Result is what was restored.
type Result struct {
	SnapshotRevision int64 `json:"snapshot_revision"`
	Revision         int64 `json:"revision"`      // of the last change restored
	NewRevision      int64 `json:"etcd_revision"` // with which etcd starts
	Changes          int   `json:"changes"`       // applied from the log
}

// Run restores. Dir appears in one rename when everything is in it and on disk. The next Run removes what a killed
// restore has left.
func Run(o Options) (Result, error) {
	if _, err := os.Lstat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		return Result{}, fmt.Errorf("%s exists already; a restore makes it", o.Dir)
	}
	staging := o.Dir + ".restoring"
	if err := os.RemoveAll(staging); err != nil {
		return Result{}, err
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: o.Snapshot, Name: "plane", OutputDataDir: staging,
		// As package etcd has them: the member is the same.
		PeerURLs: []string{"http://127.0.0.1:2380"}, InitialCluster: "plane=http://127.0.0.1:2380",
		InitialClusterToken: "etcd-cluster",
	})
	if err != nil {
		return Result{}, fmt.Errorf("snapshot %s: %w", o.Snapshot, err)
	}
	r, err := applyLog(filepath.Join(staging, "member", "snap", "db"), o)
	if err != nil {
		return Result{}, err
	}
	if err := os.Rename(staging, o.Dir); err != nil {
		return Result{}, err
	}
	parent, err := os.Open(filepath.Dir(o.Dir))
	if err != nil {
		return Result{}, err
	}
	defer parent.Close()
	return r, parent.Sync()
}

// applyLog writes the changes of the log into the database, and raises its revision.
func applyLog(database string, o Options) (r Result, err error) {
	be := backend.NewDefaultBackend(zap.NewNop(), database)
	defer func() { err = errors.Join(err, be.Close()) }()
	tx := be.BatchTx()
	tx.LockOutsideApply()
	defer tx.Unlock()

	last, err := latestRevision(tx)
	if err != nil {
		return Result{}, err
	}
	r.SnapshotRevision = last.Main
	clearAlarms(tx)
	if o.Log != "" {
		if r.Changes, last, err = applyEvents(tx, o.Log, last); err != nil {
			return Result{}, fmt.Errorf("log %s: %w", o.Log, err)
		}
	}
	r.Revision, r.NewRevision = last.Main, last.Main
	if o.Bump > 0 {
		r.NewRevision += int64(o.Bump)
		tx.UnsafePut(schema.Key, mvcc.RevToBytes(mvcc.Revision{Main: r.NewRevision}, mvcc.NewRevBytes()), []byte{})
		mvcc.UnsafeSetScheduledCompact(tx, r.NewRevision)
	}
	return r, nil
}

// latestRevision returns the highest revision of the database.
func latestRevision(tx backend.UnsafeReader) (latest mvcc.Revision, err error) {
	err = tx.UnsafeForEach(schema.Key, func(k, _ []byte) error {
		if rev := mvcc.BytesToRev(k); rev.GreaterThan(latest) {
			latest = rev
		}
		return nil
	})
	return latest, err
}

// clearAlarms removes the alarms that the member had when the snapshot was taken: it finds out anew.
func clearAlarms(tx backend.BatchTx) {
	var keys [][]byte
	_ = tx.UnsafeForEach(schema.Alarm, func(k, _ []byte) error {
		keys = append(keys, append([]byte(nil), k...))
		return nil
	})
	for _, k := range keys {
		tx.UnsafeDelete(schema.Alarm, k)
	}
}

// applyEvents writes the changes after revision last, each under the revision that it had.
func applyEvents(tx backend.BatchTx, path string, last mvcc.Revision) (n int, _ mvcc.Revision, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, last, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	from := last.Main
	for {
		event, err := readEvent(in)
		if errors.Is(err, io.EOF) {
			return n, last, nil
		}
		if err != nil {
			return n, last, fmt.Errorf("after revision %d: %w", last.Main, err)
		}
		at := event.Kv.ModRevision
		switch {
		case at <= from:
			continue // in the snapshot
		case at == last.Main:
			last.Sub++
		case at == last.Main+1:
			last = mvcc.Revision{Main: at}
		default:
			return n, last, fmt.Errorf("revision %d follows %d: changes are missing", at, last.Main)
		}
		if err := put(tx, event, last); err != nil {
			return n, last, err
		}
		if n++; n%commitEvery == 0 { // unlocking commits a large transaction
			tx.Unlock()
			tx.LockOutsideApply()
		}
	}
}

// readEvent returns io.EOF at the end of the log, and io.ErrUnexpectedEOF within a change.
func readEvent(in *bufio.Reader) (*mvccpb.Event, error) {
	size, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	if size > eventLimit {
		return nil, fmt.Errorf("a change of %d bytes", size)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(in, data); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	event := &mvccpb.Event{}
	if err := event.Unmarshal(data); err != nil {
		return nil, err
	}
	if event.Kv == nil {
		return nil, errors.New("a change without a key")
	}
	return event, nil
}

// put writes one change as etcd's own store does.
func put(tx backend.BatchTx, event *mvccpb.Event, at mvcc.Revision) error {
	key := mvcc.RevToBytes(at, mvcc.NewRevBytes())
	kv := event.Kv
	if event.Type == mvccpb.DELETE {
		key = append(key, 't')
		kv = &mvccpb.KeyValue{Key: kv.Key}
	}
	value, err := kv.Marshal()
	if err != nil {
		return err
	}
	tx.UnsafeSeqPut(schema.Key, key, value)
	if kv.Lease != 0 && schema.MustUnsafeGetLease(tx, kv.Lease) == nil {
		schema.MustUnsafePutLease(tx, &leasepb.Lease{ID: kv.Lease, TTL: leaseSeconds})
	}
	return nil
}
