package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// scarceListener has no descriptors for its first connections.
type scarceListener struct {
	net.Listener
	scarce atomic.Int64
}

func (l *scarceListener) Accept() (net.Conn, error) {
	if l.scarce.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestI6ABrokerWithoutDescriptorsGoesOn: where the process has no descriptors
// left the broker waits, and serves when it has some again.
func TestI6ABrokerWithoutDescriptorsGoesOn(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	b.stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	scarce := &scarceListener{Listener: l}
	scarce.scarce.Store(6)
	broker, err := NewBroker(b.opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- broker.Serve(ctx, scarce) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	b.connect("c1", ClientOptions{})
	if scarce.scarce.Load() >= 0 {
		t.Error("the broker was not tried")
	}
}

// TestI7StrangersDoNotFillTheBroker: the broker limits connections without a
// certificate in number and time, and a client of the region can still connect.
func TestI7StrangersDoNotFillTheBroker(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	begun := time.Now()
	var strangers []net.Conn
	for range maxUnidentifiedOfSource + 40 {
		c, err := net.Dial("tcp", b.addr)
		if errors.Is(err, syscall.ECONNRESET) {
			continue // refused before it knew that it was connected
		}
		if err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, c)
		t.Cleanup(func() { c.Close() })
	}
	// What exceeds the limit is ended at once, the others when their time is up.
	ended := make(chan time.Duration, len(strangers))
	for _, c := range strangers {
		go func() {
			_, _ = io.ReadAll(c)
			ended <- time.Since(begun)
		}()
	}
	late := 0
	for range strangers {
		select {
		case after := <-ended:
			if after > identifyTimeout-time.Second {
				late++
			}
		case <-time.After(60 * time.Second):
			t.Fatal("strangers stay")
		}
	}
	if late > maxUnidentifiedOfSource {
		t.Errorf("%d of %d strangers were let in", late, len(strangers))
	}
	b.connect("c1", ClientOptions{})
}

// A client with a certificate that does not send CONNECT counts as unidentified.
func TestI7ACertificateWithoutAConnectIsAStranger(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	c, err := tls.Dial("tcp", b.addr, b.ca.client(t, "c1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(60 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("it stays: %v", err)
	}
}

func TestGate(t *testing.T) {
	g := newGate()
	g.total, g.ofSource = 5, 2
	enter := func(ip string) func() {
		return g.enter(&net.TCPAddr{IP: net.ParseIP(ip), Port: 1})
	}
	first := enter("10.0.0.1")
	if first == nil || enter("10.0.0.1") == nil || enter("::ffff:10.0.0.1") != nil {
		t.Error("two of one address may enter, and a third not")
	}
	if enter("fd00::1") == nil || enter("fd00::2") == nil || enter("fd00::3") != nil {
		t.Error("two of one network may enter, and a third not")
	}
	if enter("10.0.0.2") == nil || enter("10.0.0.3") != nil {
		t.Error("five may enter, and a sixth not")
	}
	first()
	first()
	if enter("10.0.0.3") == nil || enter("10.0.0.4") != nil {
		t.Error("one left, so one may enter")
	}
	if len(g.bySource) != 4 || g.open != 5 {
		t.Error(fmt.Sprint(g.bySource, g.open))
	}
}
