//go:build !linux

package mosquitto

import "os/exec"

func dieWithParent(*exec.Cmd) {}
