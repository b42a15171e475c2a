package process

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

// users assigns user ids, each to one plane, by the planes' slots. The zero value is ready.
type users struct {
	mu    sync.Mutex
	taken map[int]controlplane.ID
}

// choose reserves an id for a plane: the one that it had, unless another plane has that, otherwise one that follows
// from the home and the slot. So the planes of two homes on one machine get different ids, but for one chance in 2^27.
func (u *users) choose(home string, slot controlplane.ID, had int) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.taken == nil {
		u.taken = map[int]controlplane.ID{}
	}
	u.remove(slot)
	h := fnv.New32a()
	h.Write([]byte(home + "\x00" + slot.String()))
	user := had
	if user < plane.FirstUser || user >= plane.FirstUser+plane.Users {
		user = plane.FirstUser + int(h.Sum32()%plane.Users)
	}
	for {
		if user == plane.FirstUser { // for trials
			user++
		}
		if holder, isTaken := u.taken[user]; !isTaken || holder == slot {
			u.taken[user] = slot
			return user
		}
		user = plane.FirstUser + (user-plane.FirstUser+1)%plane.Users
	}
}

// isHeld reports whether an id is that of a plane.
func (u *users) isHeld(user int, slot controlplane.ID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	holder, isTaken := u.taken[user]
	return isTaken && holder == slot
}

// release gives a plane's id back.
func (u *users) release(slot controlplane.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.remove(slot)
}

// remove gives a plane's id back. The caller holds mu.
func (u *users) remove(slot controlplane.ID) {
	for user, holder := range u.taken {
		if holder == slot {
			delete(u.taken, user)
		}
	}
}

const (
	ownLimit = 200_000 // files and directories of a plane
	ownDepth = 64
)

// errNoOwners means that root can give nothing away: the file system keeps no owners, or a user namespace has no such
// user. Nothing has changed then.
var errNoOwners = errors.New("files there cannot get another owner")

// own gives a directory and everything in it to a user. No process of the plane may run. It follows no link, may be
// interrupted and repeated, and changes nothing that is right already. The directory itself is the first: hosting may
// write the plane's issuers meanwhile, and gives that file to the owner of the directory.
func own(dir string, user int) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	if err := f.Chown(user, user); err != nil {
		if slices.ContainsFunc([]error{unix.EPERM, unix.ENOTSUP, unix.ENOSYS, unix.EINVAL},
			func(answer error) bool { return errors.Is(err, answer) }) {
			return fmt.Errorf("%w: %w", errNoOwners, err)
		}
		return err
	}
	if err := f.Chmod(0o700); err != nil {
		return err
	}
	left := ownLimit
	return ownBelow(f, user, ownDepth, &left)
}

// giveFiles gives the plane's directory to the user of its next process, 0 is root, and returns that user. Where this
// process is not root, all files are its own. Where files get no other owner, the plane runs as root.
func (x *runner) giveFiles(user int) (int, error) {
	if os.Geteuid() != 0 {
		return user, nil
	}
	err := own(x.dir, user)
	if errors.Is(err, errNoOwners) && ownerOf(x.dir) == 0 { // root without capabilities can use no other directory
		x.log.Warn("a plane runs without a user of its own", "error", err)
		return 0, nil
	}
	return user, err
}

// ownBelow gives what is in a directory to a user. A name that somebody removes or renames meanwhile is left out:
// hosting replaces the plane's issuers by a rename.
func ownBelow(dir *os.File, user, depth int, left *int) error {
	if depth == 0 {
		return fmt.Errorf("%s: its directories are deeper than any that a plane makes", dir.Name())
	}
	names, err := dir.Readdirnames(*left + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if *left -= len(names); *left < 0 {
		return fmt.Errorf("%s: it has more than %d files", dir.Name(), ownLimit)
	}
	for _, name := range names {
		path := filepath.Join(dir.Name(), name)
		var stat unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				return &os.PathError{Op: "open", Path: path, Err: err}
			}
			below := os.NewFile(uintptr(fd), path)
			err = ownBelow(below, user, depth-1, left)
			below.Close()
			if err != nil {
				return err
			}
		}
		if int(stat.Uid) == user && int(stat.Gid) == user {
			continue
		}
		err = unix.Fchownat(int(dir.Fd()), name, user, user, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &os.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	return nil
}
