package walls

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// shown are the files and directories of the system that a plane sees beside its own directory, read-only. One that
// does not exist is left out.
var shown = []string{
	// Authorities for webhooks by URL, time zones of CronJobs and of the log.
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/ca-certificates",
	"/usr/share/ca-certificates", "/usr/share/zoneinfo", "/etc/localtime",
	// The process's own figures; Landlock hides those of other processes.
	"/proc",
	"/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage",
	"/dev/null", "/dev/urandom",
}

// written are the files that a plane sees instead of the machine's.
var written = map[string]string{
	"/etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"/etc/nsswitch.conf": "hosts: files dns\n",
	"/etc/passwd":        "root:x:0:0::/:/sbin/nologin\n",
}

// mountAt is a detached copy of a mount and the path at which the plane sees it.
type mountAt struct {
	tree  int // descriptor
	path  string
	isDir bool
}

// narrowView makes a file tree of dir and what is shown, and makes it the root of this process, which must be in a
// mount namespace of its own. No socket, device or program of the machine is in the tree. The error is
// errors.ErrUnsupported where the kernel cannot, and then nothing has changed.
func narrowView(dir string) error {
	defer unix.Umask(unix.Umask(0o022)) // another user must be able to read the new tree
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	mounts, err := copyMounts(dir)
	defer func() {
		for _, m := range mounts {
			unix.Close(m.tree)
		}
	}()
	if err != nil {
		return err
	}
	root, err := emptyTree()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	// The empty tree gets a place in the present one: the only directory that is surely there. From here on an error
	// ends the process.
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("the new file tree: %w", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := m.attach(); err != nil {
			return fmt.Errorf("%s in the new file tree: %w", m.path, err)
		}
	}
	for path, content := range written {
		if err := os.MkdirAll(filepath.Dir(path[1:]), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path[1:], []byte(content), 0o644); err != nil {
			return err
		}
	}
	// The old tree comes to lie on the new one, and goes.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("the new file tree becomes the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old file tree: %w", err)
	}
	readOnly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, readOnly); err != nil {
		return fmt.Errorf("the new file tree becomes read-only: %w", err)
	}
	return unix.Chdir(dir)
}

// copyMounts returns copies of dir and of what is shown.
func copyMounts(dir string) (mounts []mountAt, err error) {
	for _, path := range append([]string{dir}, shown...) {
		tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, unix.ENOENT) && path != dir {
			continue
		}
		if err != nil { // not in this kernel, or not permitted
			return mounts, fmt.Errorf("%w: a copy of %s: %w", errors.ErrUnsupported, path, err)
		}
		var stat unix.Stat_t
		if err := unix.Fstat(tree, &stat); err != nil {
			return mounts, errors.Join(err, unix.Close(tree))
		}
		mounts = append(mounts, mountAt{tree: tree, path: path, isDir: stat.Mode&unix.S_IFMT == unix.S_IFDIR})
		attributes := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
		if path != dir {
			attributes.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attributes); err != nil {
			return mounts, fmt.Errorf("%w: attributes of %s: %w", errors.ErrUnsupported, path, err)
		}
	}
	return mounts, nil
}

// emptyTree returns a file system in memory that is mounted nowhere.
func emptyTree() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	defer unix.Close(fs)
	// The tree has about 20 files and directories; a file takes a page, which has up to 64 KiB.
	for key, value := range map[string]string{"mode": "0755", "size": "1m"} {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return 0, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return root, nil
}

// attach mounts the copy below the present directory.
func (m mountAt) attach() error {
	target := m.path[1:]
	parent := target
	if !m.isDir {
		parent = filepath.Dir(target)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if !m.isDir {
		if err := os.WriteFile(target, nil, 0o644); err != nil {
			return err
		}
	}
	return unix.MoveMount(m.tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
