package walls

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raiseLoopback brings the interface lo up, unless it is.
func raiseLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, lo); err != nil {
		return err
	}
	if lo.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// becomeUser gives all threads a user and group, and no further groups.
func becomeUser(id int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(id, id, id); err != nil {
		return err
	}
	return syscall.Setresuid(id, id, id)
}

// dropPrivileges gives up all capabilities of all threads, for this process and every program that it starts.
func dropPrivileges() error {
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return err
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
}

// onAllThreads makes a system call on every thread. The error is errors.ErrUnsupported where the program, or the
// kernel, cannot.
//
//go:uintptrescapes
func onAllThreads(number, a, b, c uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(number, a, b, c, 0, 0, 0)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP, syscall.ENOSYS:
		return errors.ErrUnsupported
	}
	return errno
}

// Rights of Landlock, by the version of its interface that brought them; the library that has them by name needs newer
// modules than Kubernetes pins.
const (
	execute   = 1 << 0
	writeFile = 1 << 1
	readFile  = 1 << 2
	readDir   = 1 << 3
	firstABI  = 1<<13 - 1 // all rights of version 1
	refer     = 1 << 13   // version 2
	truncate  = 1 << 14   // version 3
	ioctlDev  = 1 << 15   // version 5

	scopeAbstractSocket = 1 << 0 // version 6
	scopeSignal         = 1 << 1
)

// rulesetAttr is struct landlock_ruleset_attr of version 6.
type rulesetAttr struct{ files, net, scoped uint64 }

// rights returns what a version of Landlock can restrict.
func rights(version int) (a rulesetAttr, size uintptr) {
	a.files, size = firstABI, 8
	if version >= 2 {
		a.files |= refer
	}
	if version >= 3 {
		a.files |= truncate
	}
	if version >= 4 {
		size = 16
	}
	if version >= 5 {
		a.files |= ioctlDev
	}
	if version >= 6 {
		a.scoped, size = scopeAbstractSocket|scopeSignal, 24
	}
	return a, size
}

// restrictFiles leaves dir for reading and writing, and a few files of the system for reading.
func restrictFiles(dir string) error {
	const askVersion = 1
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, askVersion)
	if errno != 0 { // not in this kernel, or not enabled
		return errors.ErrUnsupported
	}
	all, size := rights(int(version))
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&all)), size, 0)
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	defer unix.Close(int(fd))
	if err := allow(int(fd), dir, all.files&^execute); err != nil {
		return err
	}
	for path, rights := range map[string]uint64{
		// Names of hosts, certificates and time zones; the process's own figures; memory and boot time.
		"/etc/hosts": readFile, "/etc/nsswitch.conf": readFile, "/etc/resolv.conf": readFile, "/etc/localtime": readFile,
		"/etc/passwd": readFile, "/etc/ssl/certs": readFile | readDir, "/etc/ssl/cert.pem": readFile,
		"/etc/pki/tls/certs": readFile | readDir, "/etc/pki/ca-trust/extracted": readFile | readDir,
		"/etc/ca-certificates": readFile | readDir, "/usr/share/ca-certificates": readFile | readDir,
		"/usr/share/zoneinfo": readFile | readDir,
		"/proc/self":          readFile | readDir, "/proc/stat": readFile, "/proc/meminfo": readFile,
		"/proc/sys/net/core/somaxconn": readFile,
		"/sys/devices/system/cpu":      readFile | readDir, "/sys/kernel/mm/transparent_hugepage": readFile | readDir,
		"/dev/null": readFile | writeFile, "/dev/urandom": readFile,
	} {
		if err := allow(int(fd), path, rights); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return onAllThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
}

// allow adds a rule for path and everything below it.
func allow(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("landlock: %s: %w", path, err)
	}
	defer unix.Close(fd)
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("landlock: %s: %w", path, errno)
	}
	return nil
}
