package plane

import "syscall"

// sysProcAttr puts the plane into a process group of its own, so that a
// terminal's Ctrl-C is not for it.
func sysProcAttr(dieWithParent bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if dieWithParent {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}
