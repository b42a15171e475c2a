package plane

import (
	"context"
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

// FindWalls runs the binary to find which walls stand on this machine: it starts at most two processes, one after the
// other. A binary that knows no walls has none.
func FindWalls(ctx context.Context, binary string) Walls {
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
		if out, err := cmd.Output(); err == nil && strings.Contains(string(out), WallPrivileges) {
			return w
		}
	}
	return Walls{}
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
