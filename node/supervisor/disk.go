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
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/node"
)

// A node's disk is a file in its home with a file system of the node's own, on a loop device: pods, images and logs
// fill that, and never the machine's (decision 179).

// diskFile returns the path of a node's disk.
func diskFile(home string) string { return filepath.Join(home, "disk.img") }

// diskShare is the part of the home's file system that one disk may have at most: a quarter.
const diskShare = 4

// minDisk is the smallest disk, in bytes.
const minDisk = 1 << 30

// makeDiskTimeout bounds the time of mkfs.ext4, which writes some megabytes.
const makeDiskTimeout = time.Minute

// errNoDisk is the error of makeDisk when the node keeps its files in directories of its home.
var errNoDisk = errors.New("the disk of the node has no limit of its own")

// makeDisk makes the disk of a node that has none yet, of at most size bytes; the file is sparse. It returns the size
// of the disk that the node has, also when an earlier start has made it: its size does not change. The error is
// errNoDisk, with a reason, when a node that an earlier version has started keeps its files in its home, or when the
// machine cannot make or mount a disk.
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
	size = max(minDisk, min(size, int64(machine.Blocks)*machine.Frsize/diskShare))
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
	if err := os.Rename(unfinished, path); err != nil {
		return 0, fmt.Errorf("making the disk of the node: %w", err)
	}
	return size, nil
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

// CheckDisks returns an error with the reason when nodes cannot have disks of their own, so that pods can fill the disk
// of the machine. It changes nothing.
func CheckDisks() error {
	_, err := findDiskTools()
	return err
}

// makeSparse makes an empty file of a size that takes no space, or replaces one.
func makeSparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// attachLoop returns a loop device with the content of a file. The device is free again when it is closed and no mount
// has it.
func attachLoop(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
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
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) { // a container has those devices only that were there at its start
			err = unix.Mknod(fmt.Sprintf("/dev/loop%d", number), unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(number))))
			if err == nil || errors.Is(err, fs.ErrExist) {
				continue
			}
		}
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

// loopMajor is the kernel's major number of loop devices.
const loopMajor = 7

// diskMounts mounts a node's disk and returns mounts of the directories of persistentDirs on it, which are attached
// nowhere; the disk stays mounted while one of them is open or attached. Their names are those that the node's init
// expects. users is nil or the user namespace of the node. The caller closes them.
func diskMounts(c node.Config, users *os.File) (mounts []*os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and its mounts with it
		mounts, err = diskMountsInOwnNamespace(c, users)
	}()
	<-done
	if err != nil {
		closeFiles(mounts)
		return nil, fmt.Errorf("mounting the disk of the node: %w", err)
	}
	return mounts, nil
}

// diskMountsInOwnNamespace makes a mount namespace for the calling thread and mounts the disk in it.
func diskMountsInOwnNamespace(c node.Config, users *os.File) (mounts []*os.File, err error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return nil, err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, err
	}
	loop, err := attachLoop(diskFile(c.Home))
	if err != nil {
		return nil, err
	}
	defer loop.Close()
	const dir = "/tmp" // in this mount namespace only
	if err := unix.Mount(loop.Name(), dir, "ext4", 0, "discard"); err != nil {
		return nil, fmt.Errorf("mounting %s: %w", loop.Name(), err)
	}
	for name := range persistentDirs {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return mounts, err
		}
		mount, err := cloneMount(path, filepath.Join(c.Home, name), 0, users)
		if err != nil {
			return mounts, err
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}
