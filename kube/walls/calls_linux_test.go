//go:build amd64 || arm64

package walls

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// tryCalls makes system calls that no plane makes. A kernel that lacks one of them answers in its own way.
func tryCalls() error {
	for name, call := range map[string][4]uintptr{
		"ptrace": {unix.SYS_PTRACE, unix.PTRACE_TRACEME}, "unshare": {unix.SYS_UNSHARE, unix.CLONE_NEWUSER},
		"bpf": {unix.SYS_BPF}, "keyctl": {unix.SYS_KEYCTL}, "userfaultfd": {unix.SYS_USERFAULTFD},
		"io_uring": {unix.SYS_IO_URING_SETUP, 1}, "mount": {unix.SYS_MOUNT}, "perf": {unix.SYS_PERF_EVENT_OPEN},
		"clone of a namespace":      {unix.SYS_CLONE, unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)},
		"a socket of packets":       {unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW},
		"a socket to the host":      {unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM},
		"a process":                 {unix.SYS_CLONE, uintptr(unix.SIGCHLD)},
		"shared memory":             {unix.SYS_SHMGET, 0, 4096, 0o600},
		"a socket for firewalls":    {unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		"a socket of Multipath TCP": {unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP},
		"a call of the 32-bit form": {otherCalls + unix.SYS_GETPID},
	} {
		if _, _, errno := syscall.Syscall(call[0], call[1], call[2], call[3]); errno != syscall.EPERM {
			return fmt.Errorf("%s: %w, want %w", name, errno, syscall.EPERM)
		}
	}
	if _, _, errno := syscall.Syscall(unix.SYS_CLONE3, 0, 0, 0); errno != syscall.ENOSYS {
		return fmt.Errorf("clone3: %w", errno)
	}
	for _, s := range sockets {
		fd, err := syscall.Socket(int(s.family), syscall.SOCK_DGRAM, 0)
		if err != nil {
			return fmt.Errorf("a socket of family %d: %w", s.family, err)
		}
		syscall.Close(fd)
	}
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err != nil { // with Multipath TCP, if the kernel has it
		return err
	} else if err := l.Close(); err != nil {
		return err
	}
	started := make(chan struct{}) // threads are still made
	go func() { close(started) }()
	<-started
	return nil
}

// TestTheFilterDecides runs the program on calls, as the kernel does.
func TestTheFilterDecides(t *testing.T) {
	vm, err := bpf.NewVM(filter())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name               string
		arch, number, word uint32
		protocol           uint32
		want               uint32
	}{
		{"read", arch, unix.SYS_READ, 0, 0, permit},
		{"a thread", arch, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_THREAD, 0, permit},
		{"a user namespace", arch, unix.SYS_CLONE, unix.CLONE_NEWUSER, 0, refuse},
		{"a mount namespace", arch, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_NEWNS, 0, refuse},
		{"a thread in a namespace", arch, unix.SYS_CLONE, unix.CLONE_THREAD | unix.CLONE_NEWNET, 0, refuse},
		{"a process", arch, unix.SYS_CLONE, uint32(unix.SIGCHLD), 0, refuse},
		{"a process with the same memory", arch, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_VFORK, 0, refuse},
		{"clone3", arch, unix.SYS_CLONE3, 0, 0, notThere},
		{"execve", arch, unix.SYS_EXECVE, 0, 0, refuse},
		{"the last of the list", arch, denied[len(denied)-1], 0, 0, refuse},
		{"a Unix socket", arch, unix.SYS_SOCKET, unix.AF_UNIX, 0, permit},
		{"a socket for keys of the kernel", arch, unix.SYS_SOCKET, unix.AF_ALG, 0, refuse},
		{"a Unix socket with a protocol", arch, unix.SYS_SOCKET, unix.AF_UNIX, 1, refuse},
		{"TCP", arch, unix.SYS_SOCKET, unix.AF_INET, unix.IPPROTO_TCP, permit},
		{"UDP", arch, unix.SYS_SOCKET, unix.AF_INET6, unix.IPPROTO_UDP, permit},
		{"SCTP", arch, unix.SYS_SOCKET, unix.AF_INET, unix.IPPROTO_SCTP, refuse},
		{"Multipath TCP", arch, unix.SYS_SOCKET, unix.AF_INET6, unix.IPPROTO_MPTCP, refuse},
		{"the list of interfaces", arch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.NETLINK_ROUTE, permit},
		{"the firewall", arch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.NETLINK_NETFILTER, refuse},
		{"two Unix sockets", arch, unix.SYS_SOCKETPAIR, unix.AF_UNIX, 0, permit},
		{"two sockets of TIPC", arch, unix.SYS_SOCKETPAIR, unix.AF_TIPC, 0, refuse},
		{"shared memory", arch, unix.SYS_SHMGET, 0, 0, refuse},
		{"another kind of machine", arch + 1, unix.SYS_READ, 0, 0, refuse},
		{"x32", arch, otherCalls + unix.SYS_READ, 0, 0, refuse},
	} {
		// The interpreter reads big-endian words.
		data := make([]byte, 64)
		for at, word := range map[int]uint32{numberAt: c.number, archAt: c.arch, argumentAt: c.word, protocolAt: c.protocol} {
			data[at], data[at+1], data[at+2], data[at+3] = byte(word>>24), byte(word>>16), byte(word>>8), byte(word)
		}
		if got, err := vm.Run(data); err != nil || uint32(got) != c.want {
			t.Errorf("%s: %#x, %v, want %#x", c.name, got, err, c.want)
		}
	}
	if !slices.Contains(denied, uint32(unix.SYS_PTRACE)) {
		t.Error("ptrace is permitted")
	}
}

// lookAtView narrows the file tree of this process, which is in a mount namespace of its own, and looks around.
func lookAtView(dir string) error {
	unix.Umask(0o077) // as the starter may have it
	standing, err := Build(Options{Dir: dir, Mounts: Own, User: 0x70000001})
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(standing, " "))
	if !slices.Contains(standing, Mounts) {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, "own"), []byte("x"), 0o600); err != nil {
		return fmt.Errorf("a file of its own: %w", err)
	}
	for _, path := range []string{"/etc/shadow", "/run", "/usr/bin", "/root", "/home", "/var/run",
		filepath.Join(filepath.Dir(dir), "neighbour")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if content, err := os.ReadFile("/etc/hosts"); err != nil || !strings.Contains(string(content), "localhost") {
		return fmt.Errorf("/etc/hosts: %q, %w", content, err)
	}
	if os.Getuid() != 0x70000001 || os.Getgid() != 0x70000001 {
		return fmt.Errorf("user %d, group %d", os.Getuid(), os.Getgid())
	}
	if err := syscall.Setuid(0); err == nil {
		return errors.New("it is root again")
	}
	if err := os.Chmod("/etc/hosts", 0o777); err == nil {
		return errors.New("the mode of a file outside of its directory was changed")
	}
	return nil
}

func TestAPlaneSeesOnlyItsOwnTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes another user")
	}
	top := t.TempDir()
	dir := filepath.Join(top, "own")
	for _, path := range []string{dir, filepath.Join(top, "neighbour")} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// The directories above are closed to the user.
	if err := errors.Join(os.Chmod(top, 0o700), os.Chown(dir, 0x70000001, 0x70000001)); err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), insideView+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("this machine permits no mount namespaces")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !slices.Contains(strings.Fields(string(out)), Mounts) {
		t.Skipf("this kernel cannot narrow a file tree: %s", out)
	}
}
