package mosquitto

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the command when the test process ends, also when that is killed.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
