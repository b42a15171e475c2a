package plane

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// setNetwork makes a process start in a network namespace of its own. Within a user namespace it keeps its user id, and
// may bring up loopback.
func (w Walls) setNetwork(a *syscall.SysProcAttr) {
	switch w.Network {
	case ByRoot:
		a.Cloneflags |= unix.CLONE_NEWNET
	case ByUser:
		a.Cloneflags |= unix.CLONE_NEWNET | unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
	}
}
