package konnectivity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// helloLimit bounds the time until a client has sent its ClientHello.
const helloLimit = 30 * time.Second

// Split divides the connections of listeners by ALPN: those of clients that offer Protocol, and all others, also those
// that speak no TLS. Nothing is answered, and the receiver reads every byte. Closing the listener of the others closes
// all of them.
func Split(listeners ...net.Listener) (agents, others net.Listener) {
	s := &splitter{listeners: listeners, closed: make(chan struct{})}
	a := &branch{splitter: s, conns: make(chan net.Conn)}
	o := &branch{splitter: s, conns: make(chan net.Conn)}
	for _, l := range listeners {
		go s.accept(l, a, o)
	}
	return a, o
}

type splitter struct {
	listeners []net.Listener
	once      sync.Once
	closed    chan struct{}
	err       error // set before closed is closed
}

func (s *splitter) close(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.closed)
		for _, l := range s.listeners {
			l.Close()
		}
	})
}

func (s *splitter) accept(l net.Listener, agents, others *branch) {
	for {
		conn, err := l.Accept()
		if err != nil {
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() { // no file descriptor is left
				select {
				case <-s.closed:
					return
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
			s.close(err)
			return
		}
		go func() {
			replayed, offers, err := readHello(conn)
			if err != nil {
				conn.Close()
				return
			}
			to := others
			if offers {
				to = agents
			}
			select {
			case to.conns <- replayed:
			case <-s.closed:
				conn.Close()
			}
		}()
	}
}

// branch is one of the two listeners.
type branch struct {
	splitter *splitter
	conns    chan net.Conn
}

func (b *branch) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.splitter.closed:
		return nil, b.splitter.err
	}
}

func (b *branch) Close() error {
	b.splitter.close(net.ErrClosed)
	return nil
}

func (b *branch) Addr() net.Addr { return b.splitter.listeners[0].Addr() }

// errHello ends a handshake whose ClientHello has been read.
var errHello = errors.New("the ClientHello has been read")

// readHello reads the ClientHello of a connection and returns a connection on which it is read again. The error is of a
// client that sent nothing complete in time, or has closed.
func readHello(conn net.Conn) (replayed net.Conn, offers bool, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(helloLimit))
	r := &recorder{Conn: conn}
	err = tls.Server(r, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		offers = slices.Contains(hello.SupportedProtos, Protocol)
		return nil, errHello
	}}).HandshakeContext(context.Background())
	if r.err != nil && (r.recorded.Len() == 0 || errors.Is(r.err, os.ErrDeadlineExceeded)) {
		return nil, false, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	return &replay{Conn: conn, before: r.recorded.Bytes()}, offers, nil
}

// recorder keeps what is read from a connection, and writes nothing to it.
type recorder struct {
	net.Conn
	recorded bytes.Buffer
	err      error // of the last read
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.recorded.Write(b[:n])
	r.err = err
	return n, err
}

func (*recorder) Write(b []byte) (int, error)      { return len(b), nil }
func (*recorder) Close() error                     { return nil }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

// replay is a connection on which some bytes were read already, and are read again.
type replay struct {
	net.Conn
	before []byte
}

func (r *replay) Read(b []byte) (int, error) {
	if len(r.before) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.before)
	if r.before = r.before[n:]; len(r.before) == 0 {
		r.before = nil
	}
	return n, nil
}

// CloseWrite ends the outgoing stream.
func (r *replay) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return io.ErrClosedPipe
}
