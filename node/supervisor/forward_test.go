package supervisor

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"atoll.dev/test/testsite"
)

// failingListener fails a number of times before it accepts, as one does while the process has no free descriptor.
type failingListener struct {
	net.Listener
	failures int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// A listener that could not accept once was given up, and the node lost its way to the API server. A connection beyond
// the bound waits until another one ends.
func TestAForwarderOutlivesErrorsAndBoundsItsConnections(t *testing.T) {
	target := testsite.Listen(t)
	go func() {
		for {
			conn, err := target.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	f := newForwarders(testsite.Log(t))
	f.places = 1
	inside := testsite.Listen(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.accept(&failingListener{inside, 2}, targetAt(target))
	}()
	var conns []net.Conn
	for range 2 {
		conn, err := net.Dial("tcp", inside.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(conns[0], answer); err != nil || string(answer) != "hello" {
		t.Fatalf("the first connection answers %q, error %v", answer, err)
	}
	f.mu.Lock()
	n := len(f.conns) // two of each connection
	f.mu.Unlock()
	if n != 2 {
		t.Errorf("%d connections are forwarded at once", n/2)
	}
	// Another listener has places of its own: pods that use up theirs do not stop kubelet.
	other := testsite.Listen(t)
	otherEnded := make(chan struct{})
	go func() {
		defer close(otherEnded)
		f.accept(other, targetAt(target))
	}()
	kubelet, err := net.Dial("tcp", other.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(kubelet, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(kubelet, answer); err != nil || string(answer) != "hello" {
		t.Fatalf("a connection of another listener answers %q, error %v", answer, err)
	}
	kubelet.Close()
	other.Close()
	conns[0].Close()
	if _, err := io.ReadFull(conns[1], answer); err != nil || string(answer) != "hello" {
		t.Errorf("the second connection answers %q, error %v", answer, err)
	}
	inside.Close()
	f.close()
	<-ended
	<-otherEnded
}

// targetAt returns a listener as a target without a plane.
func targetAt(l net.Listener) target { return target{address: l.Addr().String()} }

// Pods name no plane, so the supervisor of a machine that has only the router asks the router for the plane first.
func TestATargetBehindARouterIsAskedForItsPlane(t *testing.T) {
	for _, c := range []struct{ answer, want string }{
		{"HTTP/1.1 200 OK\r\n\r\nhello", ""},
		{"HTTP/1.1 404 Not Found\r\n\r\n", "the router refuses the plane hc-a.test: HTTP/1.1 404 Not Found"},
		{"HTTP/1.1 20", "reading the router's answer about hc-a.test: EOF"},
		{strings.Repeat("x", maxAnswer), "the router's answer about hc-a.test is too long"},
	} {
		l := testsite.Listen(t)
		asked := make(chan string, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			question := make([]byte, len("CONNECT hc-a.test:443 HTTP/1.1\r\nHost: hc-a.test:443\r\n\r\n"))
			_, _ = io.ReadFull(conn, question)
			asked <- string(question)
			_, _ = io.WriteString(conn, c.answer)
		}()
		conn, err := target{address: l.Addr().String(), plane: "hc-a.test"}.dial()
		if got := <-asked; got != "CONNECT hc-a.test:443 HTTP/1.1\r\nHost: hc-a.test:443\r\n\r\n" {
			t.Errorf("the router is asked %q", got)
		}
		if c.want != "" {
			if err == nil || err.Error() != c.want {
				t.Errorf("after the answer %.20q: error %v, want %s", c.answer, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(conn)
		if conn.Close(); err != nil || string(rest) != "hello" {
			t.Errorf("after the answer the connection has %q, %v", rest, err)
		}
	}
}
