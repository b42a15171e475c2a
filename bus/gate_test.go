package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/quick"
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

// TestI6ABrokerSurvivesALackOfDescriptors: where the process has no descriptors
// left the broker waits, and serves when it has some again.
func TestI6ABrokerSurvivesALackOfDescriptors(t *testing.T) {
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

// TestI7UnidentifiedConnectionsDoNotFillTheBroker: the broker limits connections without a
// certificate in number and time, and a client of the region can still connect.
func TestI7UnidentifiedConnectionsDoNotFillTheBroker(t *testing.T) {
	quick.LeavesOut(t, "waits for the time limit of connections")
	metrics := prometheus.NewRegistry()
	b := startBroker(t, BrokerOptions{Registerer: metrics})
	var strangers []net.Conn
	for range maxUnidentifiedOfSource + 40 {
		c, err := net.Dial("tcp", b.addr)
		if errors.Is(err, syscall.ECONNRESET) {
			continue // refused before the dialer noticed that it was connected
		}
		if err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, c)
		t.Cleanup(func() { c.Close() })
	}
	// The broker resets connections above the limit at once, and ends the others after
	// identifyTimeout.
	ended := make(chan struct{}, len(strangers))
	for _, c := range strangers {
		go func() {
			_, _ = io.ReadAll(c)
			ended <- struct{}{}
		}()
	}
	for range strangers {
		receive(t, ended)
	}
	if counterOf(t, metrics, "atoll_broker_refused_connections_total") == 0 {
		t.Errorf("the broker let in %d strangers", len(strangers))
	}
	b.connect("c1", ClientOptions{})
}

// counterOf returns the value of a counter without labels.
func counterOf(t *testing.T, metrics *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// A client with a certificate that does not send CONNECT counts as unidentified.
func TestI7ACertificateWithoutAConnectIsUnidentified(t *testing.T) {
	quick.LeavesOut(t, "waits for the time limit of connections")
	b := startBroker(t, BrokerOptions{})
	c, err := tls.Dial("tcp", b.addr, b.ca.client(t, "c1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(hangLimit))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
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
