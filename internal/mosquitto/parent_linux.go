package mosquitto

import (
	"os/exec"
	"syscall"
)

// dieWithParent leaves nothing behind when a test is killed.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
