package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"atoll.dev/internal/quick"
)

// dialFrom connects to the router from a loopback address.
func (w *world) dialFrom(source string) *net.TCPConn {
	w.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	conn, err := dialer.DialContext(w.t.Context(), "tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// sendFrom connects from a loopback address and sends.
func (w *world) sendFrom(source string, sent ...[]byte) *net.TCPConn {
	w.t.Helper()
	conn := w.dialFrom(source)
	for _, b := range sent {
		if _, err := conn.Write(b); err != nil {
			w.t.Fatal(err)
		}
	}
	return conn
}

// probe is a hello for a name and one byte more, which an echo plane returns.
func probe(name string) []byte { return append(helloFor(name), 'x') }

// isServed reports whether an echo plane has answered a probe.
func isServed(conn net.Conn) bool {
	got := make([]byte, 1)
	_, err := io.ReadFull(conn, got)
	return err == nil && got[0] == 'x'
}

// echoBytes echoes byte by byte: the kernel's copy would take two more files for each connection.
func echoBytes(conn net.Conn) {
	for b := make([]byte, 1); ; {
		if _, err := conn.Read(b); err != nil {
			return
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}

// serveEcho gives names one echo plane. The planes of asleep names must be woken first.
func (w *world) serveEcho(names, asleep []string) {
	w.t.Helper()
	backend := plainBackend(w.t, echoBytes)
	c := NewControl(func(context.Context, string) (string, error) { return backend, nil })
	w.serveControl(c)
	var routes []Route
	for _, name := range names {
		routes = append(routes, Route{ServerName: name, Backend: backend})
	}
	for _, name := range asleep {
		routes = append(routes, Route{ServerName: name, Asleep: true})
	}
	c.Set(routes)
	w.awaitRoutes(len(routes))
}

// A thousand clients that do not end their hello, from one source and from many, keep out neither
// another source nor a client of their own source.
func TestHalfOpenConnectionsKeepNobodyOut(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits = Limits{Unnamed: 200, UnnamedPerSource: 50} })
	w.serveEcho([]string{"a.example"}, nil)
	hello := helloFor("a.example")
	for i := range 1000 {
		source := "127.0.0.9" // half of them from one source
		if i%2 == 0 {
			source = fmt.Sprintf("127.0.1.%d", i%250+1)
		}
		w.sendFrom(source, hello[:i%len(hello)])
		if i%100 != 99 {
			continue
		}
		for _, source := range []string{"127.0.0.1", "127.0.0.9", "127.0.1.1"} {
			if !isServed(w.sendFrom(source, probe("a.example"))) {
				t.Fatalf("a new client of %s after %d half-open connections is not served", source, i+1)
			}
		}
	}
	eventually(t, "all but 200 have ended", func() bool { // those of a slow run at their deadline
		return w.connectionsWith(outcomeCrowded)+w.connectionsWith(outcomeSlow) >= 800
	})
}

// The limit of one name is 2,048 connections, and one source has at most half of them. Another name
// is served meanwhile.
func TestConnectionsOfOneNameLeaveRoomForOthers(t *testing.T) {
	quick.LeavesOut(t, "waits for real time-outs")
	limit := 2048
	if files := openFiles(); files < 9*limit { // six for each in the router, one at each end, and others
		limit = files / 9
		t.Logf("only %d connections, because this process may open only %d files", limit, files)
	}
	w := newWorld(t, func(o *Options) { o.Limits = Limits{PerName: limit} })
	w.serveEcho([]string{"a.example", "b.example"}, nil)
	var first *net.TCPConn
	for i := range limit {
		conn := w.sendFrom(fmt.Sprintf("127.0.0.%d", 2+2*i/limit), probe("a.example"))
		if !isServed(conn) {
			t.Fatalf("connection %d is not served", i)
		}
		if first == nil {
			first = conn
		}
	}
	for source, want := range map[string]outcome{"127.0.0.4": outcomeLimited, "127.0.0.2": outcomeLimited} {
		if isServed(w.sendFrom(source, probe("a.example"))) {
			t.Errorf("%s has a connection over the limit of the name", source)
		}
		eventually(t, "it is counted", func() bool { return w.connectionsWith(want) > 0 })
	}
	if isServed(w.sendFrom("127.0.0.2", probe("b.example"))) {
		t.Error("a source has more connections than it may have")
	}
	eventually(t, "it is counted", func() bool { return w.connectionsWith(outcomeSource) > 0 })
	if !isServed(w.sendFrom("127.0.0.4", probe("b.example"))) {
		t.Error("another name is not served")
	}
	first.Close()
	eventually(t, "a place is free", func() bool { return isServed(w.sendFrom("127.0.0.4", probe("a.example"))) })
}

func TestAFewNamesDoNotTakeAllConnections(t *testing.T) {
	quick.LeavesOut(t, "waits for real time-outs")
	w := newWorld(t, func(o *Options) { o.Limits = Limits{Connections: 48} })
	w.serveEcho([]string{"a.example", "b.example"}, nil)
	for i := range 42 {
		if !isServed(w.send(probe("a.example"))) {
			t.Fatalf("connection %d is not served", i)
		}
	}
	if isServed(w.send(probe("a.example"))) {
		t.Error("a name has connections of the reserve")
	}
	for i := range 6 {
		if !isServed(w.send(probe("b.example"))) {
			t.Fatalf("connection %d of another name is not served", i)
		}
	}
	if isServed(w.send(probe("b.example"))) {
		t.Error("a connection over the limit of all is served")
	}
	eventually(t, "both are counted", func() bool { return w.connectionsWith(outcomeFull) == 2 })
}

func TestASourceBeginsSoManyConnections(t *testing.T) {
	begun := time.Now() // buckets get nothing, however slow the test is
	w := newWorld(t, func(o *Options) {
		o.Limits, o.now = Limits{Handshakes: 1}, func() time.Time { return begun }
	})
	w.serveEcho([]string{"a.example"}, nil)
	served := 0
	for range 3 * handshakeSeconds {
		if isServed(w.sendUnchecked("127.0.0.2", probe("a.example"))) {
			served++
		}
	}
	if served != handshakeSeconds {
		t.Errorf("%d connections of one source are served", served)
	}
	if !isServed(w.sendFrom("127.0.0.3", probe("a.example"))) {
		t.Error("another source is not served")
	}
}

// sendUnchecked connects and sends, to a router that may close the connection before.
func (w *world) sendUnchecked(source string, sent []byte) net.Conn {
	conn := w.dialFrom(source)
	_, _ = conn.Write(sent)
	return conn
}

func TestABudgetBoundsTheWakesOfANameAndOfASource(t *testing.T) {
	quick.LeavesOut(t, "waits for real time")
	w := newWorld(t, func(o *Options) { o.Limits = Limits{WakesPerName: 2, WakesPerSource: 5} })
	w.serveEcho([]string{"awake.example"}, []string{"a.example", "b.example", "c.example"})
	for i := range 3 {
		if got := isServed(w.sendFrom("127.0.0.2", probe("a.example"))); got != (i < 2) {
			t.Errorf("wake %d of a name: served %t", i, got)
		}
	}
	if got := w.alertFor(helloFor("a.example")); got != string(alertInternalError) {
		t.Errorf("a plane that was woken too often: %x", got)
	}
	for _, c := range []struct {
		source, name string
		want         bool
	}{
		{"127.0.0.2", "b.example", true},
		{"127.0.0.2", "b.example", true},
		{"127.0.0.2", "c.example", true},     // its fifth: the refused one does not count
		{"127.0.0.2", "c.example", false},    // over the budget of the source
		{"127.0.0.3", "c.example", true},     // another source wakes it
		{"127.0.0.2", "awake.example", true}, // it needs no wake
	} {
		if got := isServed(w.sendFrom(c.source, probe(c.name))); got != c.want {
			t.Errorf("%s to %s: served %t", c.source, c.name, got)
		}
	}
	eventually(t, "the refused are counted", func() bool { return w.connectionsWith(outcomeWakeBudget) == 3 })
}

// A connection that waits for a wake by another source does not share the other source's refusal.
func TestTheBudgetOfOneSourceDoesNotRefuseAnother(t *testing.T) {
	r := New(Options{Dir: t.TempDir(), Control: t.TempDir() + "/none", WakeLimit: time.Millisecond,
		Limits: Limits{WakesPerSource: 1}})
	poor, rich := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	route := Route{ServerName: "a.example", Asleep: true}
	if _, err := r.wake(t.Context(), route, poor); err == nil || errors.Is(err, errSourceBudget) {
		t.Fatal(err)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	refused := r.wakes.DoChan(route.ServerName, func() (any, error) { // as wake runs it for poor
		close(begun)
		<-end
		return r.requestWake(t.Context(), route, poor)
	})
	<-begun
	answer := make(chan error, 1)
	go func() {
		_, err := r.wake(t.Context(), route, rich)
		answer <- err
	}()
	close(end)
	if done := <-refused; !errors.Is(done.Err, errSourceBudget) {
		t.Error(done.Err)
	}
	if err := <-answer; err == nil || errors.Is(err, errSourceBudget) {
		t.Errorf("the other source: %v", err)
	}
}

func TestALoadBalancerNamesTheClientsOfItsConnections(t *testing.T) {
	quick.LeavesOut(t, "waits for real time-outs")
	const balancer, client = "127.0.0.9", "PROXY TCP4 192.0.2.1 192.0.2.9 1111 443\r\n"
	begun := time.Now()
	w := newWorld(t, func(o *Options) {
		o.now = func() time.Time { return begun }
		o.Limits = Limits{Handshakes: 1, Proxies: []netip.Prefix{netip.MustParsePrefix(balancer + "/32")}}
	})
	w.serveEcho([]string{"a.example"}, nil)
	binary := []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x02\xc0\x00\x02\x09\x11\x11\x01\xbb")
	for name, sent := range map[string][]byte{"version 1": []byte(client), "version 2": binary,
		"a health check": []byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00")} {
		if !isServed(w.sendFrom(balancer, append(sent, probe("a.example")...))) {
			t.Errorf("%s: not served", name)
		}
	}
	// The limits are those of the client, and not of the load balancer.
	served := 0
	for range 3 * handshakeSeconds {
		if isServed(w.sendUnchecked(balancer, append([]byte(client), probe("a.example")...))) {
			served++
		}
	}
	if served != handshakeSeconds-1 { // one connection was before
		t.Errorf("%d connections of one client are served", served)
	}
	if !isServed(w.sendFrom(balancer, append(binary, probe("a.example")...))) {
		t.Error("another client of the load balancer is not served")
	}
	// A load balancer must send the header, and nobody else may.
	if isServed(w.sendFrom(balancer, probe("a.example"))) {
		t.Error("a connection of a load balancer without a header is served")
	}
	eventually(t, "it is counted", func() bool { return w.connectionsWith(outcomeNoHeader) == 1 })
	conn := w.sendFrom("127.0.0.8", append([]byte(client), probe("a.example")...))
	if got, _ := io.ReadAll(conn); string(got) != string(alertUnrecognizedName) {
		t.Errorf("a header from another address: %x", got)
	}
	eventually(t, "it is counted", func() bool { return w.connectionsWith(outcomeGarbage) == 1 })
}

func TestABucketFillsWithTime(t *testing.T) {
	var b bucket
	r, start := rate{perSecond: 2, burst: 3}, time.Unix(1000, 0)
	for i, c := range []struct {
		at   time.Duration
		want bool
	}{
		{0, true}, {0, true}, {0, true}, {0, false},
		{400 * time.Millisecond, false}, {500 * time.Millisecond, true}, {500 * time.Millisecond, false},
		{-time.Hour, false}, // the clock was set back
		{500*time.Millisecond - time.Hour, true}, {500*time.Millisecond - time.Hour, false},
		{time.Hour, true}, {time.Hour, true}, {time.Hour, true}, {time.Hour, false},
	} {
		if got := b.takeToken(r, start.Add(c.at)); got != c.want {
			t.Errorf("%d: take after %s is %t", i, c.at, got)
		}
	}
}

func TestTheLimitOfConnectionsFollowsThatOfOpenFiles(t *testing.T) {
	for files, want := range map[int]int{1024: 64, 20_000: 3141, 1 << 20: 174_570} {
		if got := connectionsForFiles(files, 1024); got != want {
			t.Errorf("%d files: %d connections, want %d", files, got, want)
		}
	}
	if got := (Limits{}).withDefaults().Connections; got > 16384 {
		t.Errorf("%d connections by default", got)
	}
}
