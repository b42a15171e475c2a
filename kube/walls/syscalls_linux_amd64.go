package walls

import "golang.org/x/sys/unix"

const arch = unix.AUDIT_ARCH_X86_64

// deniedHere are further calls of this kind of machine.
var deniedHere = []uint32{unix.SYS_KEXEC_FILE_LOAD, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_MKNOD,
	unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE,
	unix.SYS_FORK, unix.SYS_VFORK}
