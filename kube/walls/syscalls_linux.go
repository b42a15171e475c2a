//go:build amd64 || arm64

package walls

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// denied are system calls that no plane makes, and with which a process that was taken over reaches for others or for
// rarely used parts of the kernel.
var denied = append([]uint32{
	// other processes
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	// programs
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	// namespaces and mounts
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT, unix.SYS_MOUNT, unix.SYS_UMOUNT2,
	unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_MOUNT_SETATTR, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	// files by handle, device nodes
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_MKNODAT, unix.SYS_FANOTIFY_INIT,
	// programs and modules for the kernel
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_KEXEC_LOAD,
	// keys, page faults, requests by rings
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	// memory, semaphores and queues that the processes of a machine share
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP,
	unix.SYS_SEMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_MQ_OPEN,
	unix.SYS_MQ_UNLINK,
	// the machine
	unix.SYS_REBOOT, unix.SYS_ACCT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_ADJTIMEX,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_PERSONALITY,
	unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL,
}, deniedHere...)

// sockets are the kinds of sockets that a plane makes, each with its protocols: netlink to list the interfaces, the
// others to serve.
var sockets = []struct {
	family    uint32
	protocols []uint32
}{
	{unix.AF_UNIX, []uint32{0}},
	{unix.AF_INET, []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}},
	{unix.AF_INET6, []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}},
	{unix.AF_NETLINK, []uint32{unix.NETLINK_ROUTE}},
}

const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// Offsets in struct seccomp_data.
const (
	numberAt   = 0
	archAt     = 4
	argumentAt = 16 // low half of the first argument, on machines of either kind that begin with it
	protocolAt = argumentAt + 2*8
)

const (
	permit     = unix.SECCOMP_RET_ALLOW
	refuse     = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	notThere   = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	otherCalls = 0x40000000 // bit of the numbers of x32's calls
)

// filter returns the program that decides about each system call.
func filter() []bpf.Instruction {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: refuse},
		bpf.LoadAbsolute{Off: numberAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: otherCalls, SkipFalse: 1},
		bpf.RetConstant{Val: refuse},
		// Go's threads come from clone. The flags of clone3 are in memory, which a filter does not see; callers go on to
		// use clone when there is no clone3.
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_CLONE3, SkipFalse: 1},
		bpf.RetConstant{Val: notThere},
	}
	for _, number := range denied {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipFalse: 1}, bpf.RetConstant{Val: refuse})
	}
	program = append(program,
		// Threads, and no processes: a process could outlive the plane.
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_CLONE, SkipFalse: 5},
		bpf.LoadAbsolute{Off: argumentAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: namespaceFlags, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.CLONE_THREAD, SkipFalse: 1},
		bpf.RetConstant{Val: permit},
		bpf.RetConstant{Val: refuse},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SOCKET, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SOCKETPAIR, SkipTrue: 1},
		bpf.RetConstant{Val: permit})
	for _, s := range sockets {
		program = append(program, bpf.LoadAbsolute{Off: argumentAt, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: s.family, SkipFalse: uint8(2*len(s.protocols) + 2)},
			bpf.LoadAbsolute{Off: protocolAt, Size: 4})
		for _, protocol := range s.protocols {
			program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocol, SkipFalse: 1},
				bpf.RetConstant{Val: permit})
		}
		program = append(program, bpf.RetConstant{Val: refuse})
	}
	return append(program, bpf.RetConstant{Val: refuse})
}

// restrictCalls puts the filter before the system calls of all threads, for good.
func restrictCalls() error {
	raw, err := bpf.Assemble(filter())
	if err != nil {
		return err
	}
	instructions := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		instructions[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	program := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(instructions)
	switch {
	case errno == unix.ENOSYS, errno == unix.EINVAL, // not in this kernel
		errno == unix.EPERM, errno == unix.EACCES, errno == unix.ESRCH: // not where this process runs
		return fmt.Errorf("%w: seccomp: %w", errors.ErrUnsupported, errno)
	case errno != 0:
		return fmt.Errorf("seccomp: %w", errno)
	case thread != 0:
		return fmt.Errorf("seccomp: thread %d has a filter of its own", thread)
	}
	return nil
}
