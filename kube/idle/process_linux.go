package idle

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func (*thisProcess) used() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // the arguments are constants
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// setSlack lets the kernel end the timers of all threads late, by as much as d, which must not be 0: that would restore
// the slack that the kernel has noted as each thread's default, and the default of a thread is the slack that its maker
// had. A thread that is made later has the slack of its maker. Where the kernel knows no slack, nothing changes.
func setSlack(d time.Duration) {
	syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(d), 0)
}
