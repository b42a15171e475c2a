package backups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

const (
	// scratchCopies is the space that the making of a scratch plane's data takes, as a multiple of the size of the
	// plane's etcd: the snapshot, the log and the data.
	scratchCopies = 3
	// scratchReserve is the space that a drill leaves to customers' planes: etcd ends when it cannot write.
	scratchReserve = 1 << 30
	// secretKeys is the prefix of the keys of Secrets in etcd.
	secretKeys = "/registry/secrets/"
)

// Drillable returns the windows of the planes that a drill can restore: they run, and their backup is not failing.
func (b *Backups) Drillable() map[controlplane.ID]controlplane.BackupWindow {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := map[controlplane.ID]controlplane.BackupWindow{}
	for id, f := range b.followers {
		s := f.State()
		w, isKnown := b.windows[id]
		if f.end != nil || !isKnown || s.Stored.IsZero() || s.Failing != "" || s.Superseded {
			continue
		}
		w.Stored = s.Stored
		list[id] = w
	}
	return list
}

// PrepareScratch makes the data of a scratch plane in its staging directory, and reads the keys that the source's etcd
// had at the restored revision. It only reads the store, and claims nothing. The errors:
//
//  1. controlplane.ErrNoRoom: a customer's restore is in progress or began meanwhile, or the disk is too full.
//  2. controlplane.ErrBadBackup: objects of the backup are damaged or missing, or no data can be made from them.
//  3. backup.ErrOutside: no backup restores to the moment. Such a moment may lie between two chains.
//  4. Another error proves nothing about the backup.
func (b *Backups) PrepareScratch(ctx context.Context, scratch controlplane.ID, o controlplane.RestoreOrder) (
	controlplane.ScratchData, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if !b.beginDrill(func() { end(controlplane.ErrNoRoom) }) {
		return controlplane.ScratchData{}, controlplane.ErrNoRoom
	}
	defer func() {
		b.mu.Lock()
		b.endDrill = nil
		b.mu.Unlock()
	}()
	data, err := b.prepareScratch(ctx, scratch, o)
	if err != nil && errors.Is(context.Cause(ctx), controlplane.ErrNoRoom) {
		return controlplane.ScratchData{}, controlplane.ErrNoRoom
	}
	return data, err
}

// beginDrill sets the function that ends a drill when a customer's restore begins. It returns false, and sets nothing,
// while the data of a customer's restore is being made.
func (b *Backups) beginDrill(end context.CancelFunc) (isFree bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.preparations) > 0 {
		return false
	}
	b.endDrill = end
	return true
}

// stopDrill ends the making of a scratch plane's data: a customer's restore needs the machine.
func (b *Backups) stopDrill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endDrill != nil {
		b.endDrill()
	}
}

func (b *Backups) prepareScratch(ctx context.Context, scratch controlplane.ID, o controlplane.RestoreOrder) (
	data controlplane.ScratchData, err error) {
	staging := b.o.Staging(scratch, o.ID)
	if err := os.RemoveAll(staging); err != nil { // an earlier attempt may have left it
		return data, err
	}
	files := filepath.Join(staging, "backup")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return data, err
	}
	conn, err := b.o.Dial(o.Source, nil)
	if err != nil {
		return data, err
	}
	defer conn.Close()
	status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return data, fmt.Errorf("reading the size of the plane's etcd: %w", err)
	}
	if err := checkRoom(staging, status.DbSize); err != nil {
		return data, err
	}
	got, err := b.fetch(ctx, o, files)
	if errors.Is(err, backup.ErrCorrupt) {
		return data, fmt.Errorf("%w: %w", controlplane.ErrBadBackup, err)
	}
	if err != nil {
		return data, err
	}
	expected, err := backup.ReadContentsAt(ctx, conn, got.Sample.Revision)
	if err != nil && !errors.Is(err, backup.ErrCompacted) && !errors.Is(err, backup.ErrTooManyKeys) {
		return data, fmt.Errorf("reading the keys of the plane's etcd at revision %d: %w", got.Sample.Revision, err)
	}
	made, err := b.makeEtcd(ctx, got, 0, o.Release, staging)
	if errors.Is(err, errRestore) && !strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		return data, fmt.Errorf("%w: %w", controlplane.ErrBadBackup, err)
	}
	if err != nil {
		return data, err
	}
	return controlplane.ScratchData{Restores: made.Restores, Revision: made.Next, Expected: expected},
		os.RemoveAll(files)
}

// checkRoom returns controlplane.ErrNoRoom unless the disk of a directory has room for the data of a scratch plane.
// size is that of the source's etcd in bytes.
func checkRoom(dir string, size int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return err
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < uint64(scratchCopies*size)+scratchReserve {
		return fmt.Errorf("%w: the disk has %d MiB free", controlplane.ErrNoRoom, free>>20)
	}
	return nil
}

// CompareScratch compares the keys of a scratch plane's etcd with data.Expected. It reads the etcd at data.Revision, so
// changes that the scratch plane has made since its start do not count.
func (b *Backups) CompareScratch(ctx context.Context, scratch controlplane.ID, data controlplane.ScratchData) (
	c controlplane.ScratchComparison, err error) {
	conn, err := b.o.Dial(scratch, nil)
	if err != nil {
		return c, err
	}
	defer conn.Close()
	if c.Secrets, err = backup.CountKeys(ctx, conn, secretKeys, data.Revision); err != nil {
		return c, fmt.Errorf("counting the Secrets in the scratch plane's etcd: %w", err)
	}
	if c.Objects, err = backup.CountKeys(ctx, conn, "", data.Revision); err != nil || data.Expected == nil {
		return c, err
	}
	restored, err := backup.ReadContentsAt(ctx, conn, data.Revision)
	if err != nil {
		return c, fmt.Errorf("reading the keys of the scratch plane's etcd: %w", err)
	}
	c.IsCompared = true
	for key, revision := range restored {
		if expected, isThere := data.Expected[key]; !isThere || expected != revision {
			c.Different++
		}
	}
	for key := range data.Expected {
		if _, isThere := restored[key]; !isThere {
			c.Different++
		}
	}
	return c, nil
}
