package rest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// sourceFrom sends a request on a connection from a local address, after a beginning, and returns the source that the
// server saw; "" when the server closed the connection.
func sourceFrom(t *testing.T, to, from, beginning string) string {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// A server that closes the connection before all is written resets it: the answer is empty then.
	_, _ = fmt.Fprintf(conn, "%sGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", beginning)
	answer, _ := io.ReadAll(conn)
	_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	if !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		return ""
	}
	return body
}

// Only the configured networks name clients. For other senders the source is the address of the connection, whatever
// they send.
func TestOnlyLoadBalancersNameTheClientsOfTheirConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := WithProxyHeaders(inner, []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32"), netip.MustParsePrefix("fd00::/8")})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, SourceOf(r.RemoteAddr))
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()

	// A load balancer that sends no header, and keeps its connection open, blocks no other connection.
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	silent, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()

	for name, c := range map[string]struct{ from, beginning, source string }{
		"a load balancer names a client":         {"127.0.0.2", "PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n", "192.0.2.7/32"},
		"over IPv6":                              {"127.0.0.2", "PROXY TCP6 2001:db8::1 ::1 1234 443\r\n", "2001:db8::/64"},
		"its own health check":                   {"127.0.0.2", "PROXY UNKNOWN\r\n", "127.0.0.2/32"},
		"a load balancer without a header":       {"127.0.0.2", "", ""},
		"with a malformed one":                   {"127.0.0.2", "PROXY TCP4 192.0.2.999 127.0.0.1 1 2\r\n", ""},
		"with two":                               {"127.0.0.2", strings.Repeat("PROXY UNKNOWN\r\n", 2), ""},
		"somebody else without a header":         {"127.0.0.1", "", "127.0.0.1/32"},
		"somebody else names a client":           {"127.0.0.1", "PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n", ""},
		"somebody else next to the network does": {"127.0.0.3", "PROXY TCP4 127.0.0.2 127.0.0.1 1 2\r\n", ""},
	} {
		if got := sourceFrom(t, l.Addr().String(), c.from, c.beginning); got != c.source {
			t.Errorf("%s: source %q, want %q", name, got, c.source)
		}
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != http.ErrServerClosed {
		t.Error(err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
}

func TestAListenerWithHeadersEndsWithItsSocket(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := WithProxyHeaders(inner, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	inner.Close()
	if _, err := l.Accept(); err == nil {
		t.Error("a listener accepts whose socket is closed")
	}
	if l := WithProxyHeaders(inner, nil); l != inner {
		t.Error("without load balancers the listener is another one")
	}
}

// failingListener fails once, as a kernel without free files does, and then accepts.
type failingListener struct {
	net.Listener
	failed bool
}

func (l *failingListener) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

func TestAFailureOfTheKernelDoesNotEndAListenerWithHeaders(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := WithProxyHeaders(&failingListener{Listener: inner}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	defer l.Close()
	if _, err := l.Accept(); err != syscall.EMFILE {
		t.Errorf("error %v, want that of the kernel", err)
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	got.Close()
}
