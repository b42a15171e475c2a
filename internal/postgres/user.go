package postgres

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the operating system user that the server runs as.
type account struct {
	name     string
	uid, gid int
	switches bool // the caller is root and has to switch to it
}

// lookupAccount finds the user to run as: the caller, or, when the caller is root, the named user, else "postgres",
// else "nobody".
func lookupAccount(name string) (account, error) {
	if os.Geteuid() != 0 {
		self := account{name: strconv.Itoa(os.Geteuid()), uid: os.Geteuid(), gid: os.Getegid()}
		if u, err := user.Current(); err == nil {
			self.name = u.Username
		}
		if name != "" && name != self.name {
			return account{}, fmt.Errorf("running postgres as %s: only root can switch users, this is %s", name,
				self.name)
		}
		return self, nil
	}
	candidates := []string{"postgres", "nobody"}
	if name != "" {
		candidates = []string{name}
	}
	for _, c := range candidates {
		u, err := user.Lookup(c)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 != nil || err2 != nil || uid == 0 {
			continue
		}
		return account{name: c, uid: uid, gid: gid, switches: true}, nil
	}
	return account{}, fmt.Errorf("running postgres: it refuses to run as root, and none of the users %v exists",
		candidates)
}

// processAttributes makes a command run as the account.
func (a account) processAttributes() *syscall.SysProcAttr {
	if !a.switches {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
}

// makeOwned makes dir with mode 0700 and gives it to the account. It makes missing parents with mode
// 0755.
func (a account) makeOwned(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Lstat(dir) // not Stat: a symlink in a shared directory could be somebody else's
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != a.uid {
		if !a.switches || owner != 0 {
			return fmt.Errorf("%s belongs to user %d, not to %s", dir, owner, a.name)
		}
		if err := os.Lchown(dir, a.uid, a.gid); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// checkReachable returns nil when the account can pass through every directory above dir, and otherwise an error that
// names the first directory in the way. A home below /root, for instance, is closed to everybody but root.
func (a account) checkReachable(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err == nil && !a.mayPass(info) {
			return fmt.Errorf("user %s cannot reach %s: %s is closed to it (mode %o)", a.name, dir, parent,
				info.Mode().Perm())
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// mayPass reports whether the account may pass a directory.
func (a account) mayPass(dir os.FileInfo) bool {
	st, mode := dir.Sys().(*syscall.Stat_t), dir.Mode().Perm()
	switch {
	case int(st.Uid) == a.uid:
		return mode&0o100 != 0
	case int(st.Gid) == a.gid:
		return mode&0o010 != 0
	}
	return mode&0o001 != 0
}
