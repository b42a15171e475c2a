package plane

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// setNamespaces makes a process start in namespaces of its own. Within a user namespace it keeps its user id, may bring
// up loopback and may narrow its file tree.
func (w Walls) setNamespaces(a *syscall.SysProcAttr) {
	switch w.Network {
	case ByRoot:
		a.Cloneflags |= unix.CLONE_NEWNET
	case ByUser:
		a.Cloneflags |= unix.CLONE_NEWNET | unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
		if w.Mounts {
			a.AmbientCaps = append(a.AmbientCaps, unix.CAP_SYS_ADMIN)
		}
	}
	if w.Mounts {
		a.Cloneflags |= unix.CLONE_NEWNS
	}
}
