package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"atoll.dev/node"
)

// cloneMount returns a mount of a file or directory of this machine that is attached nowhere, with a name and
// attributes such as MOUNT_ATTR_RDONLY. users is nil or the user namespace of a node: then the owner 0 of a file is the
// root of the node, and files that the node's root makes belong to 0.
func cloneMount(path, name string, attributes uint64, users *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("opening the mount %s: %w", path, err)
	}
	mount := os.NewFile(uintptr(fd), name)
	attr := unix.MountAttr{Attr_set: attributes}
	if users != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(users.Fd())
	}
	if attr.Attr_set == 0 {
		return mount, nil
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		mount.Close()
		return nil, fmt.Errorf("setting attributes of the mount %s: %w", path, err)
	}
	return mount, nil
}

// machineMounts returns the files and directories of this machine that a node sees, as mounts that are attached
// nowhere: the node's root has no right to reach them by their paths. Their names are their paths. The caller closes
// them.
func machineMounts(c node.Config) (mounts []*os.File, err error) {
	defer func() {
		if err != nil {
			closeFiles(mounts)
			mounts = nil
		}
	}()
	add := func(path string) error {
		mount, err := cloneMount(path, path, unix.MOUNT_ATTR_RDONLY, nil)
		if err == nil {
			mounts = append(mounts, mount)
		}
		return err
	}
	for _, path := range sharedDirs {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		if err != nil {
			return mounts, err
		}
		if err := add(path); err != nil {
			return mounts, err
		}
	}
	for _, path := range []string{c.Programs, nodeDir(c)} {
		if err := add(path); err != nil {
			return mounts, err
		}
	}
	return mounts, nil
}

// homeMounts returns mounts of the directories of persistentDirs in the node's home, which are attached nowhere, and
// makes those that are missing. The caller closes them. users is nil or the user namespace of the node.
func homeMounts(c node.Config, users *os.File) (mounts []*os.File, err error) {
	for name := range persistentDirs {
		path := filepath.Join(c.Home, name)
		err := os.MkdirAll(path, 0o700)
		if err == nil {
			var mount *os.File
			if mount, err = cloneMount(path, path, 0, users); err == nil {
				mounts = append(mounts, mount)
			}
		}
		if err != nil {
			closeFiles(mounts)
			return nil, err
		}
	}
	return mounts, nil
}

// nodeDir returns the directory "node" next to atoll-node, with containerd, the CNI plugins and the pause image.
func nodeDir(c node.Config) string { return filepath.Join(filepath.Dir(c.Programs), "node") }

// attach attaches a mount of machineMounts to a path.
func attach(mount *os.File, path string) error {
	return unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
