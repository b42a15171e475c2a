package beneath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// open opens name below dir without following a link, in one call where the kernel has openat2.
func open(dir, name string, flags int, perm fs.FileMode) (*os.File, error) {
	parent, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(parent)
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	if flags&os.O_CREATE != 0 {
		how.Mode = uint64(perm.Perm())
	}
	for range maxAttempts {
		fd, err := openat2(parent, name, &how)
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // kernels before 5.6, and filters that know no openat2
			fd, err = openByParts(parent, name, flags, perm)
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue // a rename elsewhere made the kernel unsure
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), filepath.Join(dir, name)), nil
	}
	return nil, fmt.Errorf("%w: the kernel does not open it now", ErrKind)
}

// maxAttempts bounds the calls for one file: a lease of another process on the file (F_SETLEASE) gives EAGAIN each
// time.
const maxAttempts = 32

// openat2 is the system call; a test replaces it.
var openat2 = unix.Openat2

// openByParts opens name below the directory parent one part after the other, each without following a link.
func openByParts(parent int, name string, flags int, perm fs.FileMode) (int, error) {
	if !filepath.IsLocal(name) {
		return 0, unix.EXDEV
	}
	parts := strings.Split(filepath.Clean(name), string(filepath.Separator))
	last := len(parts) - 1
	for _, part := range parts[:last] {
		fd, err := unix.Openat(parent, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		parent = fd
	}
	return unix.Openat(parent, parts[last], flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm.Perm()))
}

// DialUnix connects to a Unix socket below dir. The kernel gets the opened socket instead of a path: so no link is
// followed, and the path may be longer than the name of a socket.
func DialUnix(ctx context.Context, dir, name string) (net.Conn, error) {
	f, err := open(dir, name, unix.O_PATH, 0)
	if err != nil {
		return nil, pathError(dir, name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		err = ErrKind
	}
	if err != nil {
		return nil, pathError(dir, name, err)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}
