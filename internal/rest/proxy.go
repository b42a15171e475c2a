package rest

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"atoll.dev/internal/proxyproto"
)

const (
	// proxyHeaderTimeout bounds the wait for the PROXY header of a connection, which a load balancer sends at
	// once.
	proxyHeaderTimeout = 5 * time.Second
	// maxPendingHeaders bounds the connections whose header is not complete. Only load balancers have such.
	maxPendingHeaders = 1024
)

// WithProxyHeaders returns a listener that reads the PROXY header of each connection from the given
// networks, and whose connections have the address of the client that the header names. A connection
// from there without a well-formed header is closed. Other connections are unchanged: a header that
// they send is read as the beginning of a TLS handshake, which fails. Without networks it returns l.
func WithProxyHeaders(l net.Listener, from []netip.Prefix) net.Listener {
	if len(from) == 0 {
		return l
	}
	p := &proxyListener{Listener: l, from: from, ready: make(chan net.Conn), failed: make(chan error),
		closed: make(chan struct{}), places: make(chan struct{}, maxPendingHeaders)}
	go p.accept()
	return p
}

type proxyListener struct {
	net.Listener
	from   []netip.Prefix
	ready  chan net.Conn
	failed chan error
	places chan struct{} // one for each connection whose header is being read

	once   sync.Once
	closed chan struct{}
}

// accept hands over connections until the listener fails or is closed.
func (p *proxyListener) accept() {
	for {
		conn, err := p.Listener.Accept()
		if err != nil {
			// Some errors are temporary, such as too many open files. http.Server waits a little before it accepts again.
			select {
			case p.failed <- err:
			case <-p.closed:
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		if !p.isProxy(conn) {
			p.handOver(conn)
			continue
		}
		select {
		case p.places <- struct{}{}:
			go p.readHeader(conn)
		default:
			conn.Close()
		}
	}
}

func (p *proxyListener) isProxy(conn net.Conn) bool {
	addr, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	return err == nil && slices.ContainsFunc(p.from, func(n netip.Prefix) bool {
		return n.Contains(addr.Addr().Unmap().WithZone(""))
	})
}

func (p *proxyListener) readHeader(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(proxyHeaderTimeout))
	client, err := proxyproto.Read(conn)
	<-p.places
	if err != nil || conn.SetReadDeadline(time.Time{}) != nil {
		conn.Close()
		return
	}
	if client.IsValid() {
		conn = &proxiedConn{conn, net.TCPAddrFromAddrPort(client)}
	}
	p.handOver(conn)
}

// handOver gives a connection to Accept, or closes it with the listener.
func (p *proxyListener) handOver(conn net.Conn) {
	select {
	case p.ready <- conn:
	case <-p.closed:
		conn.Close()
	}
}

func (p *proxyListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.ready:
		return conn, nil
	case err := <-p.failed:
		return nil, err
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *proxyListener) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}

// proxiedConn is a connection whose client a load balancer named.
type proxiedConn struct {
	net.Conn
	client net.Addr
}

func (c *proxiedConn) RemoteAddr() net.Addr { return c.client }
