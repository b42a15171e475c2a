package walls

import "golang.org/x/sys/unix"

const arch = unix.AUDIT_ARCH_AARCH64

// deniedHere are further calls of this kind of machine.
var deniedHere = []uint32{unix.SYS_KEXEC_FILE_LOAD}
