package router

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// maxSocketPath is the longest path of a Unix socket that the kernel accepts, without the final zero byte.
const maxSocketPath = 107

// ListenControl creates the control socket at path, for its owner only. It replaces
// the socket of an earlier process.
func ListenControl(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	var l net.Listener
	err := withShortPath(path, func(short string) (err error) {
		l, err = net.Listen("unix", short)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	// Closing must not remove the socket of a successor.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

// dialControl connects to the control socket.
func dialControl(ctx context.Context, path string) (conn net.Conn, err error) {
	var d net.Dialer
	err = withShortPath(path, func(short string) (err error) {
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}

// withShortPath calls f with a path of the same socket that fits into a socket address:
// the path of a home may be too long.
func withShortPath(path string, f func(string) error) error {
	if len(path) <= maxSocketPath {
		return f(path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
