package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	dialTimeout = 10 * time.Second // of one forwarded connection
	// maxForwarded bounds the connections of one listener that are forwarded at once. More wait in its queue: pods do not
	// use up the descriptors of this process, and leave kubelet its own places.
	maxForwarded = 400
	acceptPause  = 100 * time.Millisecond // after an error of the listener, such as no free descriptor
)

// forwarders accept connections on listeners that are in a node and dial for them on this machine. Use newForwarders.
type forwarders struct {
	log     *slog.Logger
	places  int           // connections of one listener that are forwarded at once
	closing chan struct{} // close closes it

	mu        sync.Mutex
	closed    bool
	listeners []net.Listener
	conns     map[net.Conn]bool
}

func newForwarders(log *slog.Logger) *forwarders {
	return &forwarders{log: log, places: maxForwarded, closing: make(chan struct{}), conns: map[net.Conn]bool{}}
}

// target is the address to which the connections of a listener are forwarded.
type target struct {
	address string // HOST:PORT, dialled on this machine
	// plane is the server name that the router at the address gets by a CONNECT before anything else; "": no CONNECT.
	plane string
	// dialNode replaces the dial on this machine, when the target is in a node; address is a text for the log then.
	dialNode func() (net.Conn, error)
}

// add takes over the descriptor of a listener and forwards its connections to target.
func (f *forwarders) add(file *os.File, target target) error {
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return err
	}
	f.follow(l, target)
	return nil
}

// follow forwards the connections of a listener to target until close, which closes the listener.
func (f *forwarders) follow(l net.Listener, target target) {
	f.mu.Lock()
	f.listeners = append(f.listeners, l)
	f.mu.Unlock()
	go f.accept(l, target)
}

// accept forwards the connections of a listener until that or the forwarders are closed.
func (f *forwarders) accept(l net.Listener, target target) {
	slots := make(chan struct{}, f.places) // holds one for each connection that is forwarded
	for {
		select {
		case slots <- struct{}{}:
		case <-f.closing:
			return
		}
		conn, err := l.Accept()
		if err == nil {
			go func() {
				defer func() { <-slots }()
				f.forward(conn, target)
			}()
			continue
		}
		<-slots
		if errors.Is(err, net.ErrClosed) {
			return
		}
		f.log.Warn("a connection of the node cannot be accepted", "error", err)
		select {
		case <-time.After(acceptPause):
		case <-f.closing:
			return
		}
	}
}

// forward copies between a connection and a new one to target until both directions have ended.
func (f *forwarders) forward(inside net.Conn, target target) {
	defer inside.Close()
	outside, err := target.dial()
	if err != nil {
		f.log.Warn("a connection of the node cannot be forwarded", "to", target.address, "error", err)
		return
	}
	defer outside.Close()
	if !f.track(inside, outside) {
		return
	}
	defer f.untrack(inside, outside)
	var back sync.WaitGroup
	back.Go(func() { copyOneWay(inside, outside) })
	copyOneWay(outside, inside)
	back.Wait()
}

// dial connects to the target.
func (t target) dial() (net.Conn, error) {
	if t.dialNode != nil {
		return t.dialNode()
	}
	conn, err := net.DialTimeout("tcp", t.address, dialTimeout)
	if err != nil || t.plane == "" {
		return conn, err
	}
	_ = conn.SetDeadline(time.Now().Add(dialTimeout))
	err = sendConnect(conn, t.plane)
	_ = conn.SetDeadline(time.Time{})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// maxAnswer bounds the answer to a CONNECT, in bytes.
const maxAnswer = 1 << 10

// sendConnect sends a router a CONNECT for a plane and reads its answer, and no byte after that.
func sendConnect(conn io.ReadWriter, plane string) error {
	name := net.JoinHostPort(plane, "443")
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", name, name); err != nil {
		return fmt.Errorf("asking the router for %s: %w", plane, err)
	}
	var answer []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(answer, []byte("\r\n\r\n")) {
		if len(answer) == maxAnswer {
			return fmt.Errorf("the router's answer about %s is too long", plane)
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return fmt.Errorf("reading the router's answer about %s: %w", plane, err)
		}
		answer = append(answer, one[0])
	}
	if line, _, _ := strings.Cut(string(answer), "\r\n"); line != "HTTP/1.1 200 OK" {
		return fmt.Errorf("the router refuses the plane %s: %s", plane, line)
	}
	return nil
}

// copyOneWay copies from one connection to the other until the first one's end, and then closes the other's writing
// half. After an error it closes both.
func copyOneWay(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); err == nil && ok && half.CloseWrite() == nil {
		return
	}
	to.Close() // a failed direction ends the connection
	from.Close()
}

// track adds connections to those that close closes. It returns false when close was called before.
func (f *forwarders) track(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range conns {
		f.conns[conn] = true
	}
	return !f.closed
}

func (f *forwarders) untrack(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range conns {
		delete(f.conns, conn)
	}
}

// close ends all listeners and connections.
func (f *forwarders) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		close(f.closing)
	}
	f.closed = true
	for _, l := range f.listeners {
		l.Close()
	}
	for conn := range f.conns {
		conn.Close()
	}
}

// mirrorAddress returns HOST:PORT of a mirror's URL, which Config.Validate has accepted.
func mirrorAddress(mirror string) string {
	u, err := url.Parse(mirror)
	if err != nil {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
