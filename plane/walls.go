package plane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Walls shut a plane's process in, see docs/decisions/110. The zero value has none.
type Walls struct {
	// Network is how the process gets a network namespace with nothing but loopback. It serves on a socket that its
	// starter opens outside.
	Network NetworkWall
	// Mounts means that the process gets a mount namespace of its own, in which it narrows its file tree.
	Mounts bool
	// User is the user id that the process takes, which must own its directory; 0: that of its starter. Only root can
	// give one, and only where HasUser.
	User int
	// HasUser means that the process can take another user id.
	HasUser bool
	// Process means that the process gives up its capabilities and opens no file outside of its directory, as far as
	// the kernel permits.
	Process bool
}

// NetworkWall is a way to a network namespace.
type NetworkWall string

// Ways to a network namespace.
const (
	NoNetworkWall NetworkWall = ""     // the process shares the starter's
	ByRoot        NetworkWall = "root" // a namespace that root makes
	ByUser        NetworkWall = "user" // a namespace inside a user namespace, which the kernel lets any user make
)

// Names of walls, as Readiness lists them.
const (
	WallNetwork    = "network"
	WallPrivileges = "privileges"
	WallFiles      = "files"
	WallMounts     = "mounts"
	WallUser       = "user"
	WallCalls      = "syscalls"
)

// knownWalls are the walls that a process reports.
var knownWalls = []string{WallNetwork, WallMounts, WallUser, WallPrivileges, WallFiles, WallCalls}

// FirstUser is the first of the 2^27 user ids that planes get, and the one with which FindWalls tries: no system gives
// these to users or containers.
const (
	FirstUser = 0x70000000
	Users     = 1 << 27
)

// FindWalls runs the binary to find which walls stand on this machine: it starts at most six processes, one after the
// other; where everything stands, one. A binary that knows no walls has none. A search that did not end, or could not
// start a process, is an error: it proves nothing about the machine.
func FindWalls(ctx context.Context, binary string) (Walls, error) {
	ways := []Walls{{Network: ByUser, Mounts: true}, {Network: ByUser}, {}}
	if os.Geteuid() == 0 {
		ways = append([]Walls{{Network: ByRoot, Mounts: true, User: FirstUser}, {Network: ByRoot, Mounts: true},
			{Network: ByRoot}}, ways...)
	}
	for _, w := range ways {
		w.Process = true
		args := append([]string{"walls"}, w.args()...)
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = []string{"TMPDIR=" + os.TempDir()} // and not the mark of the region's process that looks
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		w.setNamespaces(cmd.SysProcAttr)
		out, err := cmd.Output()
		if standing := strings.Fields(string(out)); err == nil && slices.Contains(standing, WallPrivileges) {
			// An earlier program knows fewer walls.
			w.Mounts = slices.Contains(standing, WallMounts)
			// In the tree of others, a user of its own may not reach its directory.
			w.User, w.HasUser = 0, w.Mounts && slices.Contains(standing, WallUser)
			return w, nil
		}
		_, hasRun := errors.AsType[*exec.ExitError](err)
		isRefused := errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) ||
			errors.Is(err, syscall.ENOSPC) // a kernel's answer to a namespace that it does not permit
		if ctx.Err() != nil || err != nil && !hasRun && !isRefused {
			return Walls{}, fmt.Errorf("finding the walls of this machine: %w", cmp.Or(ctx.Err(), err))
		}
	}
	return Walls{}, nil
}

// apply makes the command of a plane start behind the walls. The socket is open until the command has started.
func (w Walls) apply(cmd *exec.Cmd, address string) (socket *os.File, err error) {
	if w.Process {
		cmd.Args = append(cmd.Args, "--walled")
	}
	w.setNamespaces(cmd.SysProcAttr)
	if w.Network == NoNetworkWall {
		return nil, nil
	}
	if w.Mounts {
		cmd.Args = append(cmd.Args, "--own-mounts")
	}
	if w.User != 0 {
		cmd.Args = append(cmd.Args, "--user", strconv.Itoa(w.User))
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	defer l.Close() // the file is a copy
	if socket, err = l.(*net.TCPListener).File(); err != nil {
		return nil, fmt.Errorf("the socket of %s: %w", address, err)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, socket)
	const firstExtra = 3
	cmd.Args = append(cmd.Args, "--listen-fd", strconv.Itoa(firstExtra+len(cmd.ExtraFiles)-1))
	return socket, nil
}

// args are the arguments of the command "walls".
func (w Walls) args() (args []string) {
	if w.Network != NoNetworkWall {
		args = append(args, "--own-network")
	}
	if w.Mounts {
		args = append(args, "--own-mounts")
	}
	if w.User != 0 {
		args = append(args, "--user", strconv.Itoa(w.User))
	}
	return args
}
