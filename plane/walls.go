package plane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Walls shut a plane's process in, see docs/decisions/110. The zero value has none.
type Walls struct {
	// Network is how the process gets a network namespace with nothing but loopback. It serves on a socket that its
	// starter opens outside.
	Network NetworkWall
	// Process says that the process gives up its capabilities and opens no file outside of its directory, as far as the
	// kernel lets it.
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
)

// knownWalls are the walls that a process reports.
var knownWalls = []string{WallNetwork, WallPrivileges, WallFiles}

// FindWalls runs the binary to find which walls stand on this machine: it starts at most two processes, one after the
// other. A binary that knows no walls has none. A search that did not end, or could not start a process, is an error:
// it says nothing about the machine.
func FindWalls(ctx context.Context, binary string) (Walls, error) {
	ways := []NetworkWall{ByUser, NoNetworkWall}
	if os.Geteuid() == 0 {
		ways = []NetworkWall{ByRoot, ByUser, NoNetworkWall}
	}
	for _, way := range ways {
		w := Walls{Network: way, Process: true}
		args := []string{"walls"}
		if way != NoNetworkWall {
			args = append(args, "--own-network")
		}
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = []string{"TMPDIR=" + os.TempDir()} // and not the mark of the region's process that looks
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		w.setNetwork(cmd.SysProcAttr)
		out, err := cmd.Output()
		if err == nil && strings.Contains(string(out), WallPrivileges) {
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
	if w.Network == NoNetworkWall {
		return nil, nil
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
	w.setNetwork(cmd.SysProcAttr)
	return socket, nil
}
