package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

// statusLimit bounds the call of the etcd of a plane that is being restored, which may be broken.
const statusLimit = 10 * time.Second

// makeData makes the data in the staging directory, unless complete data is there.
func (b *Backups) makeData(ctx context.Context, id controlplane.ID, o controlplane.RestoreOrder) (
	controlplane.Preparation, error) {
	staging := b.o.Staging(id, o.ID)
	made, err := readPrepared(staging)
	if err != nil {
		if made, err = b.restore(ctx, id, o, staging); err != nil {
			return controlplane.Preparation{}, err
		}
	}
	done := controlplane.Preparation{State: controlplane.PreparationDone, Restores: made.Restores}
	if o.ID == controlplane.Recovery {
		d := &controlplane.Departure{}
		content, err := os.ReadFile(filepath.Join(staging, controlplane.StagedPast))
		if err == nil {
			err = json.Unmarshal(content, &d.PastData)
		}
		if err != nil {
			return controlplane.Preparation{}, fmt.Errorf("the orders that the plane has executed: %w", err)
		}
		d.Served = made.Release
		done.Departure = d
	}
	return done, nil
}

// stageIdentity writes the keys and the executed orders of a plane that is restored to its own data. A clone gets
// neither: it is another cluster.
func stageIdentity(staging string, got backup.Fetched) error {
	if len(got.Keys) > 0 {
		if err := got.Keys.Write(filepath.Join(staging, controlplane.StagedKeys)); err != nil {
			return err
		}
	}
	past, err := json.Marshal(got.Restores)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(staging, controlplane.StagedPast), past, 0o600)
}

// restore makes the data anew, and then the file preparedName, which shows that the data is complete.
func (b *Backups) restore(ctx context.Context, id controlplane.ID, o controlplane.RestoreOrder, staging string) (
	made prepared, err error) {
	if err := os.RemoveAll(staging); err != nil {
		return prepared{}, err
	}
	files := filepath.Join(staging, "backup")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return prepared{}, err
	}
	if o.ID == controlplane.Recovery {
		if err := b.take(ctx, id); err != nil {
			return prepared{}, err
		}
	}
	got, err := b.fetch(ctx, o, files)
	if err != nil {
		return prepared{}, err
	}
	known, err := b.knownRevision(ctx, id)
	if err != nil {
		return prepared{}, fmt.Errorf("the highest revision of the plane: %w", err)
	}
	release := o.Release
	if last := controlplane.Version(got.Release); o.ID == controlplane.Recovery && b.o.Programs[last] != "" {
		release = last // the release of the spec may be one that does not work
	}
	if made, err = b.makeEtcd(ctx, got, known, release, staging); err != nil {
		return prepared{}, err
	}
	if id == o.Source {
		if err := stageIdentity(staging, got); err != nil {
			return prepared{}, fmt.Errorf("writing the keys of the plane: %w", err)
		}
	}
	content, err := json.Marshal(made)
	if err != nil {
		return prepared{}, err
	}
	if err := os.RemoveAll(files); err != nil {
		return prepared{}, err
	}
	return made, atomicfile.Write(filepath.Join(staging, preparedName), content, 0o600)
}

// fetch fetches the files of a restore's backup into dir. It records and logs which chains are damaged.
func (b *Backups) fetch(ctx context.Context, o controlplane.RestoreOrder, dir string) (backup.Fetched, error) {
	got, err := backup.Fetch(ctx, b.o.Store, b.o.KMS, backup.Plane(o.Source), o.At, dir)
	b.noteRead(o.Source, got, err)
	if err == nil {
		b.logDamage(o, got)
	}
	return got, err
}

// logDamage logs the errors of damaged chains, when another chain restored to the moment of an order. For the latest
// moment, these chains are later than the restored one.
func (b *Backups) logDamage(o controlplane.RestoreOrder, got backup.Fetched) {
	switch {
	case got.Damage == nil:
	case o.At.IsZero():
		b.o.Log.Error("the last chains of a backup cannot be opened, so later writes may be lost",
			"plane", o.Source.String(), "chain", got.Chain, "until", got.Sample.Time, "error", got.Damage)
	default:
		b.o.Log.Warn("a chain of a backup is damaged; another one restores to the moment", "plane", o.Source.String(),
			"at", o.At, "chain", got.Chain, "error", got.Damage)
	}
}

// errRestore is the error of "atoll-kube restore" when it cannot make data from the files of a backup.
var errRestore = errors.New("making the data")

// knownRevision returns the highest known revision of a plane: that of its backup, or that of its etcd when the plane
// runs.
func (b *Backups) knownRevision(ctx context.Context, id controlplane.ID) (known int64, err error) {
	if known, err = backup.HighestRevision(ctx, b.o.Store, b.o.KMS, backup.Plane(id)); err != nil {
		return 0, err
	}
	if _, isMade := b.State(id); !isMade {
		return known, nil
	}
	conn, err := b.o.Dial(id, nil)
	if err != nil {
		return known, nil // the plane has ended
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return known, nil // the etcd may be the broken one that is being restored
	}
	return max(known, status.Header.GetRevision()), nil
}

// makeEtcd makes the data of etcd in a staging directory, with the keys of its Secrets. known is the highest revision
// that the plane of the directory is known to have had.
func (b *Backups) makeEtcd(ctx context.Context, got backup.Fetched, known int64, release controlplane.Version,
	staging string) (prepared, error) {
	next := backup.NextRevision(time.Now(), max(known, got.Sample.Revision))
	bump := max(next-got.Sample.Revision, 1)
	run := exec.CommandContext(ctx, b.o.Programs[release], "restore", "--data-dir", staging, "--snapshot", got.Snapshot,
		"--log", got.Log, "--bump", strconv.FormatInt(bump, 10))
	printed, err := run.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return prepared{}, fmt.Errorf("%w: %s", errRestore, exit.Stderr)
	}
	if err != nil { // for example, a signal has ended the program
		return prepared{}, fmt.Errorf("making the data: %w", err)
	}
	var result struct {
		Revision int64 `json:"revision"`
		Next     int64 `json:"etcd_revision"`
	}
	if err := json.Unmarshal(printed, &result); err != nil {
		return prepared{}, fmt.Errorf("making the data: %w", err)
	}
	if err := got.Keys.WriteEncryption(filepath.Join(staging, "etcd")); err != nil {
		return prepared{}, fmt.Errorf("writing the encryption keys of the Secrets: %w", err)
	}
	return prepared{Restores: got.Sample.Time, Revision: result.Revision, Next: result.Next,
		Release: controlplane.Version(got.Release)}, nil
}

// readPrepared returns an error when the data in a staging directory is not complete.
func readPrepared(staging string) (made prepared, err error) {
	content, err := os.ReadFile(filepath.Join(staging, preparedName))
	if err != nil {
		return prepared{}, err
	}
	if err := json.Unmarshal(content, &made); err != nil || made.Next == 0 {
		return prepared{}, fmt.Errorf("%s: %w", preparedName, fs.ErrInvalid)
	}
	return made, nil
}
