package supervisor

import (
	"encoding/json"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"atoll.dev/node"
)

// order is the first message from the supervisor to init: which node to set up and run.
type order struct {
	Config  node.Config
	Cgroups []hierarchy
	Proxy   proxyMode
	Mounts  []string // paths of this machine; their mounts come with the order as descriptors
	// UserNamespace reports whether the node is in a user namespace of its own.
	UserNamespace bool
}

// message is what the supervisor and init send each other after that. One member is set.
type message struct {
	Stop      bool     `json:",omitempty"` // to init: it must end the programs and then itself
	Listeners []string `json:",omitempty"` // from init: names of the listeners whose descriptors come with the message
	Program   *report  `json:",omitempty"` // from init: a program was started or has ended
	Up        bool     `json:",omitempty"` // from init: all programs run
	Failed    string   `json:",omitempty"` // from init: the node cannot start; init ends
}

// report is the state of one program.
type report struct {
	Name string
	node.Program
}

const (
	maxMessage = 200 << 10 // bytes; the kernel's default limit of a datagram is a little more
	maxFiles   = 32        // descriptors in one message
)

// control is one end of the socket between supervisor and init. One receive returns one sent message.
type control struct{ conn *net.UnixConn }

// controlPair makes the socket and returns the supervisor's end and, as a file to inherit, init's end.
func controlPair() (*control, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	initEnd := os.NewFile(uintptr(fds[1]), "control of init")
	own, err := newControl(os.NewFile(uintptr(fds[0]), "control"))
	if err != nil {
		initEnd.Close()
		return nil, nil, err
	}
	return own, initEnd, nil
}

// newControl takes over a file that is an end of the socket.
func newControl(f *os.File) (*control, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	own, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("%s is not a Unix socket", f.Name())
	}
	return &control{own}, nil
}

// send sends a value as one message, with the descriptors of files.
func (c *control) send(value any, files ...*os.File) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("a message of %d bytes is longer than %d", len(data), maxMessage)
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.conn.WriteMsgUnix(data, rights, nil)
	return err
}

// receive waits for a message and decodes its value. The caller closes the files that came with the message. The error
// is net.ErrClosed when the other end is closed.
func (c *control) receive(value any) ([]*os.File, error) {
	data, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, rn, _, _, err := c.conn.ReadMsgUnix(data, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, net.ErrClosed
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, json.Unmarshal(data[:n], value)
}
