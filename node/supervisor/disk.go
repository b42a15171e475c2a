package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/node"
)

// A node's disk is a sparse file in its home with an ext4 file system, on a loop device. Pods, images and logs of one
// node use at most its size; the disks of several nodes together can exceed the machine's (decision 179).

// diskFile returns the path of a node's disk.
func diskFile(home string) string { return filepath.Join(home, "disk.img") }

const (
	// diskDivisor bounds the size of a disk: at most a quarter of the home's file system, but at least minDisk bytes.
	diskDivisor = 4
	minDisk     = 1 << 30
	// attachPatience is how long attachLoop waits until the kernel has unmounted the disk of a node that has ended.
	attachPatience = 10 * time.Second
)

// makeDiskTimeout bounds the time of mkfs.ext4, which writes some megabytes.
const makeDiskTimeout = time.Minute

// errNoDisk is the error of makeDisk when the node keeps its files in directories of its home.
var errNoDisk = errors.New("the node has no disk of its own")

// makeDisk makes the disk of a node that has none yet: of size bytes or a quarter of the home's file system, whichever
// is less, and at least minDisk. It returns the size of the disk that the node has, also when an earlier start has made
// it: its size does not change. The error is errNoDisk, with a reason, when a node that an earlier version has started
// keeps its files in its home, and when the machine cannot make or mount such a disk. Then there is no disk.
func makeDisk(home string, size int64) (int64, error) {
	path := diskFile(home)
	if info, err := os.Stat(path); err == nil {
		return info.Size(), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("the disk of the node: %w", err)
	}
	for name := range persistentDirs {
		if _, err := os.Lstat(filepath.Join(home, name)); err == nil {
			return 0, fmt.Errorf("%w: its home has the directory %s of an earlier start", errNoDisk, name)
		}
	}
	mkfs, err := findDiskTools()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoDisk, err)
	}
	var machine unix.Statfs_t
	if err := unix.Statfs(home, &machine); err != nil {
		return 0, fmt.Errorf("reading the size of the file system of %s: %w", home, err)
	}
	size = max(minDisk, min(size, int64(machine.Blocks)*machine.Frsize/diskDivisor))
	unfinished := path + ".unfinished"
	if err := makeSparse(unfinished, size); err != nil {
		return 0, fmt.Errorf("making the disk of the node: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), makeDiskTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, mkfs, "-q", "-F", "-m", "0", "-J", "size=64",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", unfinished)
	if output, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("making the file system of the node's disk: %w: %s", err, bytes.TrimSpace(output))
	}
	// makeDisk mounts the disk once as a trial: a container may have the tools and no right to mount. When a later start
	// finds that out, the disk already has the node's files, and the node cannot run without it.
	isMountable := func(string) error { return nil }
	if err := inOwnMounts(func() error { return withMounted(unfinished, isMountable) }); err != nil {
		if isPermanent(err) {
			err = fmt.Errorf("%w: %w", errNoDisk, err)
		}
		return 0, errors.Join(err, os.Remove(unfinished))
	}
	if err := os.Rename(unfinished, path); err != nil {
		return 0, fmt.Errorf("making the disk of the node: %w", err)
	}
	return size, nil
}

// isPermanent reports whether an error of mounting a disk says that this machine or this container cannot do it, and
// not that something is missing at the moment, such as memory.
func isPermanent(err error) bool {
	return slices.ContainsFunc([]error{unix.EPERM, unix.EACCES, unix.ENOENT, unix.ENODEV, unix.ENXIO, unix.ENOSYS,
		unix.ENOTTY, unix.EINVAL}, func(permanent error) bool { return errors.Is(err, permanent) })
}

// findDiskTools returns the path of mkfs.ext4. The error says what this machine lacks for disks of nodes.
func findDiskTools() (mkfs string, err error) {
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "", fmt.Errorf("this machine has no loop devices: %w", err)
	}
	if mkfs, err = findProgram("mkfs.ext4"); err != nil {
		return "", fmt.Errorf("%w; "+installAdvice, err, "e2fsprogs")
	}
	return mkfs, nil
}

// TryDisk makes and mounts a disk in a new directory below dir, and removes it again. An error has the reason why nodes
// with homes below dir cannot have disks of their own. Then their pods can fill the disk of the machine.
func TryDisk(dir string) (err error) {
	home, err := os.MkdirTemp(dir, "atoll-disk-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	_, err = makeDisk(home, minDisk)
	return err
}

// makeSparse makes a file of a size that takes no space yet, because all of it is a hole. It replaces an existing file.
func makeSparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// attachLoop attaches a file to a free loop device, and returns the open device. The kernel detaches the file when the
// device is closed and no longer mounted. Two mounts of one file by two devices would destroy the file system, so
// attachLoop first waits until no device has the file: the kernel unmounts the disk of a killed node a moment after
// the node's last process has ended.
func attachLoop(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for deadline := time.Now().Add(attachPatience); ; time.Sleep(pollEvery) {
		device, err := deviceOf(file)
		if err != nil {
			return nil, err
		}
		if device == "" {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s is attached to %s and cannot be mounted twice", path, device)
		}
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	const attempts = 100 // another process may take the free device first
	for range attempts {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("asking for a free loop device: %w", err)
		}
		device, err := openLoop(number)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attaching %s to a loop device: %w", path, err)
		}
	}
	return nil, fmt.Errorf("attaching %s to a loop device: others took %d free devices", path, attempts)
}

// deviceOf returns the name of the loop device that has a file; "" when none has it. It compares files and not their
// paths: the kernel shows the path in the mount namespace of the process that attached the file, which may have ended.
// A device that this process may not open counts as one without the file.
func deviceOf(file *os.File) (string, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &want); err != nil {
		return "", err
	}
	attached, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return "", err
	}
	for _, dir := range attached {
		name := filepath.Base(filepath.Dir(dir))
		number, err := strconv.Atoi(strings.TrimPrefix(name, "loop"))
		if err != nil {
			continue
		}
		device, err := openLoop(number)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		device.Close()
		switch {
		case errors.Is(err, unix.ENXIO): // detached meanwhile
		case err != nil:
			return "", fmt.Errorf("reading the state of %s: %w", name, err)
		case info.Device == want.Dev && info.Inode == want.Ino:
			return name, nil
		}
	}
	return "", nil
}

// loopMajor is the kernel's major number of loop devices.
const loopMajor = 7

// openLoop opens a loop device. A container has the files of those devices only that were there at its start, so
// openLoop makes a missing file.
func openLoop(number int) (*os.File, error) {
	path := fmt.Sprintf("/dev/loop%d", number)
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return device, err
	}
	err = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(number))))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making %s: %w", path, err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// inOwnMounts calls f in a thread with a mount namespace of its own: the rest of the machine does not see the mounts
// that f makes.
func inOwnMounts(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // without unlock, so that no other goroutine ever runs in this namespace
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// withMounted mounts a disk in the calling thread's mount namespace, calls f with the directory of the mount, and
// unmounts the disk. The end of the goroutine would not do that: when its thread is the program's first one, which Go
// never ends, the namespace stays.
func withMounted(disk string, f func(dir string) error) (err error) {
	loop, err := attachLoop(disk)
	if err != nil {
		return err
	}
	defer loop.Close()
	const dir = "/tmp" // in this mount namespace only
	if err := unix.Mount(loop.Name(), dir, "ext4", 0, "discard"); err != nil {
		return fmt.Errorf("mounting %s: %w", loop.Name(), err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	return f(dir)
}

// diskMounts returns a mount of each directory of persistentDirs on a node's disk. The mounts are attached nowhere, and
// the disk stays mounted while one of them is open or attached. The name of each is the path in the node's home that
// the node's init expects. users is nil or the user namespace of the node. The caller closes them.
func diskMounts(c node.Config, users *os.File) (mounts []*os.File, err error) {
	err = inOwnMounts(func() error {
		return withMounted(diskFile(c.Home), func(dir string) error {
			for name := range persistentDirs {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(path, 0o700); err != nil {
					return err
				}
				mount, err := cloneMount(path, filepath.Join(c.Home, name), 0, users)
				if err != nil {
					return err
				}
				mounts = append(mounts, mount)
			}
			return nil
		})
	})
	if err != nil {
		closeFiles(mounts)
		return nil, fmt.Errorf("mounting the disk of the node: %w", err)
	}
	return mounts, nil
}
