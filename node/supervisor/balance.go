package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"atoll.dev/node"
)

// NodePort is a port of nodes, to which the connections of a listener on this machine are forwarded.
type NodePort struct {
	Listener net.Listener
	Port     uint16
}

// ForwardToNodes forwards the connections of listeners to ports of nodes until stop is called, which closes the
// listeners and all connections. homes returns the homes of the nodes at the time of a connection: the first one that
// answers gets it. At most maxForwarded connections of one listener are forwarded at once; more wait.
func ForwardToNodes(ports []NodePort, homes func() []string, log *slog.Logger) (stop func()) {
	f := newForwarders(log)
	for _, p := range ports {
		f.follow(p.Listener, target{address: "node port " + strconv.Itoa(int(p.Port)),
			dialNode: func() (net.Conn, error) { return dialFirst(homes(), p.Port) }})
	}
	return f.close
}

// dialFirst connects to a port of the first node that answers.
func dialFirst(homes []string, port uint16) (net.Conn, error) {
	problems := []error{errors.New("no node answers")}
	for _, home := range homes {
		conn, err := dialNode(home, port)
		if err == nil {
			return conn, nil
		}
		problems = append(problems, err)
	}
	return nil, errors.Join(problems...)
}

// dialNode connects to a port of the node of a home, from the node's own network namespace: this machine has no other
// way to a node, and nodes have none to this machine.
func dialNode(home string, port uint16) (net.Conn, error) {
	status, err := node.ReadStatus(home)
	if err != nil {
		return nil, err
	}
	running, err := node.Running(home)
	if err != nil || !running || status.Init == 0 || status.Address == "" {
		return nil, errors.Join(fmt.Errorf("%s: the node does not run", home), err)
	}
	at, err := netip.ParseAddr(status.Address)
	if err != nil {
		return nil, fmt.Errorf("the status of the node of %s: %w", home, err)
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", status.Init))
	if err != nil {
		return nil, fmt.Errorf("opening the network of a node: %w", err)
	}
	defer space.Close()
	type result struct {
		conn net.Conn
		err  error
	}
	dialled := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			dialled <- result{nil, fmt.Errorf("entering the network of a node: %w", err)}
			return
		}
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(at, port).String(), dialTimeout)
		dialled <- result{conn, err}
	}()
	r := <-dialled
	return r.conn, r.err
}
