package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// replicaFlags are the flags of a service that may have several replicas on one machine.
type replicaFlags struct{ sharePorts bool }

func (f *replicaFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.sharePorts, "share-ports", false,
		"let replicas on this machine, of the same user, listen on the same ports; each gets a part of the connections")
}

// listen opens a TCP listener of an API. With --share-ports the kernel divides new connections among all open listeners
// of the port that have the flag: after the end of one replica the others get all of them.
func (f *replicaFlags) listen(addr string) (net.Listener, error) {
	if !f.sharePorts {
		return listen(addr)
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(controlErr, err)
	}}
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return l, nil
}
