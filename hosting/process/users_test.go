package process

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/plane"
)

func TestEachPlaneHasAUserOfItsOwn(t *testing.T) {
	var u users
	holders := map[int]controlplane.ID{}
	for _, name := range []string{"a", "b", "c", "d"} {
		id := controlplane.ID{Namespace: "n", Name: name}
		first := holders
		user := u.choose("/home", id, 0)
		if other, isTaken := first[user]; isTaken || user <= plane.FirstUser || user >= plane.FirstUser+plane.Users {
			t.Errorf("%s has user %d, as %s", id, user, other)
		}
		holders[user] = id
		if again := u.choose("/home", id, user); again != user {
			t.Errorf("%s had user %d, and now %d", id, user, again)
		}
	}
	for user := range holders { // a record names the user of another plane
		stranger := controlplane.ID{Namespace: "n", Name: "stranger"}
		if got := u.choose("/home", stranger, user); holders[got] != (controlplane.ID{}) {
			t.Errorf("the user %d of %s was given again", got, holders[got])
		}
	}
	if user := u.choose("/home", controlplane.ID{Namespace: "n", Name: "e"}, 0); u.choose("/other",
		controlplane.ID{Namespace: "n", Name: "f"}, 1) == user {
		t.Error("user 1 led to a user of another plane")
	}
}

// Data of earlier versions, and restored data, belong to root. They become the plane's; what the plane has linked to
// does not.
func TestFilesBecomeThePlanesAndLinksAreNotFollowed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	top := t.TempDir()
	dir := filepath.Join(top, "plane")
	writeFiles(t, top, map[string]string{"foreign/file": "x", "plane/etcd/member/db": "x", "plane/lock": "x"})
	if err := errors.Join(os.Symlink("../foreign", filepath.Join(dir, "directory")),
		os.Symlink("../foreign/file", filepath.Join(dir, "file")), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	const user = plane.FirstUser + 5
	for range 2 {
		if err := own(dir, user); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]uint32{".": 0, "foreign": 0, "foreign/file": 0, "plane": user,
		"plane/etcd/member/db": user, "plane/lock": user, "plane/directory": user} {
		info, err := os.Lstat(filepath.Join(top, path))
		if err != nil {
			t.Fatal(err)
		}
		if s := info.Sys().(*syscall.Stat_t); s.Uid != want || s.Gid != want {
			t.Errorf("%s belongs to %d:%d, want %d", path, s.Uid, s.Gid, want)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	deep := dir
	for range ownDepth + 1 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := own(dir, user); err == nil {
		t.Error("a directory without end was followed")
	}
	if err := own(filepath.Join(dir, "directory"), user); err == nil {
		t.Error("a link was followed")
	}
}

// Hosting replaces the plane's issuers while the plane starts.
func TestFilesMayBeReplacedWhileTheyBecomeThePlanes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-end:
				ended <- nil
				return
			default:
			}
			if err := atomicfile.Write(filepath.Join(dir, "authentication.json"), nil, 0o600); err != nil {
				ended <- err
				return
			}
		}
	}()
	for n := range 300 {
		if err := own(dir, plane.FirstUser+1+n%2); err != nil {
			t.Error(err)
			break
		}
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A file system without owners costs a plane the wall "user", and not its start: own reports it before it changes a
// file.
func TestAFileSystemWithoutOwnersIsReportedFirst(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	const immutable = 0x10 // FS_IMMUTABLE_FL of the kernel
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"file": "x"})
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil { // the kernel answers for an immutable directory as such a file system does
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutable)
	}
	if err != nil {
		t.Skipf("this file system has no immutable directories: %v", err)
	}
	defer func() {
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
			t.Error(err)
		}
	}()
	if err := own(dir, plane.FirstUser+5); !errors.Is(err, errNoOwners) {
		t.Errorf("error %v, want %v", err, errNoOwners)
	}
	x := &runner{dir: dir, log: slog.New(slog.DiscardHandler)}
	if user, err := x.giveFiles(plane.FirstUser + 5); user != 0 || err != nil {
		t.Errorf("the plane gets user %d, %v; want root", user, err)
	}
	info, err := os.Lstat(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); s.Uid != 0 {
		t.Errorf("the file belongs to %d", s.Uid)
	}
}
