package local

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A supervisor that starts a replica looks whether the ports that it shares are free. Meanwhile the other replicas get
// every connection.
func TestALookAtASharedPortTakesNoConnection(t *testing.T) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer l.Close()
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("x"))
			c.Close()
		}
	})
	port := l.Addr().(*net.TCPAddr).Port
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	running.Go(func() {
		for ctx.Err() == nil {
			if !isPortFree(port, allReplicas) {
				t.Error("a replica cannot share the port")
				return
			}
		}
	})
	for i := range 500 {
		c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Minute)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("connection %d got no answer: %v", i, err)
		}
		c.Close()
	}
	if isPortFree(port, oneProcess) {
		t.Error("the port is free for a process that shares it with no other")
	}
}
