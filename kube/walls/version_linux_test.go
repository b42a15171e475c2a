package walls

import "golang.org/x/sys/unix"

// hasScopes reports whether this kernel's Landlock restricts signals.
func hasScopes() bool {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
	return errno == 0 && version >= 6
}
