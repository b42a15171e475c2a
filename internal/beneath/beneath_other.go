//go:build !linux

package beneath

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// open opens name below dir. Between the look for a link and the opening a link may appear that stays below dir.
func open(dir, name string, flags int, perm fs.FileMode) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if info, err := root.Lstat(name); err == nil && info.Mode().Type() == fs.ModeSymlink {
		return nil, ErrKind
	}
	return root.OpenFile(name, flags, perm.Perm())
}

// DialUnix connects to a Unix socket below dir. Between the look for a link and the connection a link may appear.
func DialUnix(ctx context.Context, dir, name string) (net.Conn, error) {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		err = ErrKind
	}
	if err != nil {
		return nil, pathError(dir, name, err)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
