package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/beneath"
)

// Bounds of the copy of a plane's data. etcd has a few files of at most 8 GiB together; the plane writes them, and may
// be hostile.
const (
	copyDepth = 4
	copyFiles = 4096
	copyBytes = 16 << 30
	// copyReserve is the space that a copy leaves to the other planes on the disk: etcd ends when it cannot write.
	copyReserve = 1 << 30
)

// copyData copies the data of a stopped plane before its first start with another release than that of record, as
// spec.Copy orders. The copy waits as restored data of that name. A copy that an interrupted call has made is made
// anew: the plane may have run since. The record gets the copy's name.
func (x *runner) copyData(next *record, spec controlplane.Spec) error {
	have := x.record
	isFirst := have.Served != "" && have.Release == have.Served && spec.Release != have.Served
	if !isFirst || spec.Copy == "" || spec.Copy == have.Copy || spec.Copy == have.Data {
		return nil
	}
	staging := x.runtime.Staging(x.id, spec.Copy)
	if err := os.RemoveAll(staging); err != nil {
		return err
	}
	if err := os.MkdirAll(staging, 0o700); err != nil {
		return err
	}
	c := copier{from: x.dir, to: staging, files: copyFiles, bytes: copyBytes}
	if err := c.copyDir("etcd", copyDepth); err != nil {
		return errors.Join(err, os.RemoveAll(staging)) // of a full disk
	}
	if err := errors.Join(atomicfile.SyncDir(staging), atomicfile.SyncDir(x.state)); err != nil {
		return err
	}
	if have.Copy != "" { // of an earlier upgrade
		if err := os.RemoveAll(x.runtime.Staging(x.id, have.Copy)); err != nil {
			return err
		}
	}
	next.Copy = spec.Copy
	return nil
}

// checkSpace returns ENOSPC unless the disk of a directory has room for a file and for reserve bytes more.
func checkSpace(dir string, size int64, reserve uint64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return err
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < uint64(size)+reserve {
		return fmt.Errorf("a file of %d MiB leaves less than %d MiB free: %w", size>>20, reserve>>20, unix.ENOSPC)
	}
	return nil
}

// dropCopy removes the copy of a running plane's data when the order does not name it any more. While no process runs,
// the data may be between two directories, and nothing is removed.
func (x *runner) dropCopy(wanted string) error {
	if x.process == nil || x.record.Copy == "" || x.record.Copy == wanted {
		return nil
	}
	if err := os.RemoveAll(x.runtime.Staging(x.id, x.record.Copy)); err != nil {
		return err
	}
	next := x.record
	next.Copy = ""
	if err := next.write(x.state); err != nil {
		return err
	}
	x.record = next
	x.updateObservation(func(*controlplane.Observation) {})
	return nil
}

// copier copies directories of a plane. It follows no link, and fails when there is more than it may copy.
type copier struct {
	from, to string
	files    int // that it may still copy
	bytes    int64
}

// copyDir copies a directory below from. Each file is on disk when it returns.
func (c *copier) copyDir(name string, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%s: its directories are deeper than those of etcd", name)
	}
	names, err := beneath.List(c.from, name, c.files)
	if err != nil {
		return err
	}
	c.files -= len(names)
	to := filepath.Join(c.to, name)
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, part := range names {
		path := filepath.Join(name, part)
		err := c.copyFile(path)
		if errors.Is(err, errDirectory) {
			err = c.copyDir(path, depth-1)
		}
		if err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(to)
}

// errDirectory is the error of copyFile for a directory.
var errDirectory = errors.New("a directory")

func (c *copier) copyFile(name string) error {
	info, err := os.Lstat(filepath.Join(c.from, name)) // beneath decides what is opened
	if err != nil {
		return err
	}
	if info.IsDir() {
		return errDirectory
	}
	in, err := beneath.Open(c.from, name)
	if err != nil {
		return err
	}
	defer in.Close()
	if info, err = in.Stat(); err == nil {
		err = checkSpace(c.to, info.Size(), copyReserve)
	}
	if err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(c.to, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, c.bytes+1))
	if c.bytes -= n; err == nil && c.bytes < 0 {
		err = fmt.Errorf("%s: the data has more than %d GiB: %w", name, copyBytes>>30, fs.ErrInvalid)
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
