package rest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// serveLimited runs a server with limits until the test ends. It returns its address and its
// metrics.
func serveLimited(t *testing.T, limits ConnLimits, h http.Handler) (string, *prometheus.Registry) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	limits.Metrics = registry
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- (&Server{Name: "limited", Handler: h, Log: quiet.Log, Limits: limits}).Run(ctx, l)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), registry
}

// dialFrom connects from a loopback address.
func dialFrom(t *testing.T, source, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Minute}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// exchange sends one request on conn and returns the status line of the answer.
func exchange(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.Status, err
}

// valueOf returns the sum of a metric over its labels that contain label.
func valueOf(t *testing.T, registry *prometheus.Registry, name, label string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || strings.Contains(fmt.Sprint(m.GetLabel()), label) {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// A thousand connections that never complete a request, from one source and from many, block
// neither another source nor a client of their own source.
func TestHalfOpenConnectionsKeepNobodyOut(t *testing.T) {
	limits := ConnLimits{Total: 200, PerSource: 50}
	addr, registry := serveLimited(t, limits, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	client := dialFrom(t, "127.0.0.1", addr)
	if status, err := exchange(client); err != nil || status != "200 OK" {
		t.Fatalf("%s %v", status, err)
	}
	for i := range 1000 {
		source := "127.0.0.9" // half of them from one source
		if i%2 == 0 {
			source = fmt.Sprintf("127.0.1.%d", i%250+1)
		}
		conn := dialFrom(t, source, addr)
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "); err != nil {
			t.Fatal(err)
		}
		if i%100 != 99 {
			continue
		}
		for _, source := range []string{"127.0.0.1", "127.0.0.9"} {
			if status, err := exchange(dialFrom(t, source, addr)); err != nil || status != "200 OK" {
				t.Fatalf("a new client of %s after %d half-open connections: %s %v", source, i+1, status, err)
			}
		}
	}
	if open := valueOf(t, registry, "http_connections_open", ""); open > float64(limits.Total) {
		t.Errorf("%v connections are open, the limit is %d", open, limits.Total)
	}
	if evicted := valueOf(t, registry, "http_connections_closed_total", "evicted"); evicted < 700 {
		t.Errorf("%v connections were evicted", evicted)
	}
}

// Requests whose senders are not proven, and that withhold their bodies, block no other client: the
// connection of such a request is evicted for a new one, and its handler cannot keep it afterwards.
func TestUnprovenRequestsKeepNobodyOut(t *testing.T) {
	limits := ConnLimits{Total: 40, PerSource: 10}
	kept := make(chan error, 1000)
	addr, registry := serveLimited(t, limits, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			kept <- KeepConnection(r.Context())
		}
	}))
	for i := range 200 {
		conn := dialFrom(t, fmt.Sprintf("127.0.1.%d", i%50+1), addr)
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if i%20 != 19 {
			continue
		}
		for _, source := range []string{"127.0.0.1", "127.0.1.1"} {
			if status, err := exchange(dialFrom(t, source, addr)); err != nil || status != "200 OK" {
				t.Fatalf("a new client of %s after %d unproven requests: %s %v", source, i+1, status, err)
			}
		}
	}
	if err := <-kept; !errors.Is(err, ErrEvicted) {
		t.Errorf("the connection of an evicted request is kept: %v", err)
	}
	if refused := valueOf(t, registry, "http_connections_closed_total", "refused"); refused != 0 {
		t.Errorf("%v connections were refused", refused)
	}
}

// Connections with a running request of a proven sender are not evicted: the next one is refused,
// and is admitted after one of them has ended.
func TestRunningRequestsKeepTheirConnections(t *testing.T) {
	begun, end := make(chan struct{}, 8), make(chan struct{})
	addr, registry := serveLimited(t, ConnLimits{PerSource: 2}, http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			if err := KeepConnection(r.Context()); err != nil {
				t.Error(err)
			}
			begun <- struct{}{}
			<-end
		}))
	answers := make(chan error, 2)
	for range 2 {
		conn := dialFrom(t, "127.0.0.5", addr)
		go func() {
			_, err := exchange(conn)
			answers <- err
		}()
		<-begun
	}
	refused := dialFrom(t, "127.0.0.5", addr)
	_ = refused.SetDeadline(time.Now().Add(time.Minute))
	if n, err := refused.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("the connection over the limit was not closed: %d bytes", n)
	}
	if n := valueOf(t, registry, "http_connections_closed_total", "refused"); n != 1 {
		t.Errorf("%v refused", n)
	}
	other := dialFrom(t, "127.0.0.6", addr)
	otherAnswer := make(chan error, 1)
	go func() {
		_, err := exchange(other)
		otherAnswer <- err
	}()
	<-begun
	close(end)
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := <-otherAnswer; err != nil {
		t.Error(err)
	}
	// A client has its answer a moment before the server knows that the request has ended.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for last := time.Now().Add(time.Minute); ; <-tick.C {
		status, err := exchange(dialFrom(t, "127.0.0.5", addr))
		if err == nil && status == "200 OK" {
			break
		}
		if time.Now().After(last) {
			t.Fatalf("after the requests have ended: %s %v", status, err)
		}
	}
}

func TestSourceOf(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3:4":              "10.1.2.3/32",
		"[::ffff:10.1.2.3]:4":     "10.1.2.3/32",
		"[2001:db8:1:2:3::4]:5":   "2001:db8:1:2::/64",
		"[fe80::1%eth0]:5":        "fe80::/64",
		"@":                       "invalid Prefix",
		"":                        "invalid Prefix",
		"example.com:443":         "invalid Prefix",
		"[2001:db8:1:2:ffff::]:1": "2001:db8:1:2::/64",
	} {
		if got := SourceOf(text); got.String() != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if SourceOf("") != (netip.Prefix{}) {
		t.Error("connections without an address do not share a source")
	}
}
