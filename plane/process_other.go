//go:build !linux

package plane

import (
	"errors"
	"syscall"
	"time"
)

func sysProcAttr(Options) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

type notice struct{ leave func() }

func openNotice(int) (*notice, error)       { return nil, errors.ErrUnsupported }
func (*notice) wait() bool                  { return false }
func (*notice) signal(syscall.Signal) error { return errors.ErrUnsupported }

func (Walls) setNamespaces(*syscall.SysProcAttr) {}

func limitFiles(int, uint64) {}

// KillStrays does nothing: this system has no pidfd.
func KillStrays(string, []int, func(int) bool) error { return nil }

// EndProcesses does nothing: this system has no pidfd.
func EndProcesses([]int, func(int) bool, time.Duration) (int, error) { return 0, nil }

// servesFrom reports true: this system does not show the command line of a process.
func servesFrom(int, string) bool { return true }
