//go:build !linux

package plane

import (
	"errors"
	"syscall"
)

func sysProcAttr(Options) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func exitNotice(int) (func() bool, func(), error) { return nil, nil, errors.ErrUnsupported }

func limitFiles(int, uint64) {}
