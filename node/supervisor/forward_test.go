package supervisor

import (
	"io"
	"net"
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
	f.slots = make(chan struct{}, 1)
	inside := testsite.Listen(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.accept(&failingListener{inside, 2}, target.Addr().String())
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
	if n := len(f.slots); n != 1 {
		t.Errorf("%d connections are forwarded at once", n)
	}
	conns[0].Close()
	if _, err := io.ReadFull(conns[1], answer); err != nil || string(answer) != "hello" {
		t.Errorf("the second connection answers %q, error %v", answer, err)
	}
	inside.Close()
	f.close()
	<-ended
}
