package router

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAConnectionGoesToThePlaneThatItNames(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(noWake)
	w.serveControl(c)
	c.Set([]Route{
		{ServerName: "a.example", Backend: tlsBackend(t, "plane a")},
		{ServerName: "B.example", Backend: tlsBackend(t, "plane b")},
	})
	w.awaitRoutes(2)
	for name, want := range map[string]string{"a.example": "plane a", "A.EXAMPLE": "plane a", "b.example": "plane b"} {
		if got, err := w.get(name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := w.get("c.example"); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("a name without a route: %v", err)
	}
	eventually(t, "the connections are counted", func() bool {
		return w.connectionsWith(outcomeRouted) == 3 && w.connectionsWith(outcomeUnknown) == 1 &&
			value(w.router.metrics.open) == 0
	})
	if n := value(w.router.metrics.bytes.WithLabelValues(string(toClient))); n < 1000 {
		t.Errorf("%v bytes carried to clients", n)
	}
}

func TestAHelloWithoutARouteGetsAnAlert(t *testing.T) {
	w := newWorld(t, nil)
	want := map[outcome]float64{}
	for name, c := range map[string]struct {
		sent []byte
		why  outcome
	}{
		"plain HTTP":     {[]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), outcomeGarbage},
		"no server name": {helloWithoutName(), outcomeNoName},
		"unknown name":   {helloFor("a.example"), outcomeUnknown},
		"too long":       {bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, 3000), outcomeGarbage},
	} {
		if got := w.alertFor(c.sent); got != string(alertUnrecognizedName) {
			t.Errorf("%s: %x", name, got)
		}
		want[c.why]++
	}
	w.dial().Close()
	want[outcomeHungUp]++
	for why, n := range want {
		eventually(t, "counted as "+string(why), func() bool { return w.connectionsWith(why) == n })
	}
}

func TestASlowHelloIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Dir: t.TempDir()})
		client, server := net.Pipe()
		p := &clientConn{conn: server}
		r.admit(p)
		done := make(chan outcome, 1)
		begun := time.Now()
		go func() { done <- r.serve(context.Background(), p); server.Close() }()
		whole := helloFor("a.example")
		_, _ = client.Write(whole[:len(whole)-1])
		got, err := io.ReadAll(client)
		if took := time.Since(begun); err != nil || !bytes.Equal(got, alertUnrecognizedName) || took != helloTimeout {
			t.Errorf("%x, %v after %s", got, err, took)
		}
		if why := <-done; why != outcomeSlow {
			t.Error(why)
		}
	})
}

func TestTheEndOfOneDirectionIsPassedOnAndTheOtherGoesOn(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(noWake)
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Backend: plainBackend(t, echo)}})
	w.awaitRoutes(1)
	conn := w.send(helloFor("a.example"))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 MiB: more than any buffer on the way
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	want := append(bytes.Clone(sent), 0x30, 0, 0)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
	}
	eventually(t, "the bytes are counted", func() bool {
		return value(w.router.metrics.bytes.WithLabelValues(string(toClient))) == float64(len(want))
	})
}

// A connection that the plane has closed stops counting even if the client keeps it: otherwise it
// would keep the plane awake.
func TestAConnectionClosedByThePlaneIsEnded(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Linger = 20 * time.Millisecond })
	c := NewControl(noWake)
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Backend: plainBackend(
		t, func(conn net.Conn) { _, _ = conn.Write([]byte("last")) })}})
	w.awaitRoutes(1)
	conn := w.send(helloFor("a.example"))
	if got, err := io.ReadAll(conn); err != nil || string(got) != "last" {
		t.Errorf("%q, %v", got, err)
	}
	eventually(t, "it is closed", func() bool { return len(connsOf(w.router)) == 0 })
}

func TestConnectionsInFlightSurviveChangesOfTheTable(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(noWake)
	stop := w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Backend: plainBackend(t, echo)}})
	w.awaitRoutes(1)
	conn := w.send(append(helloFor("a.example"), "hello"...))
	answers := func(text string) {
		t.Helper()
		got := make([]byte, len(text))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	answers("hello")
	c.Set(nil)
	w.awaitRoutes(0)
	_, _ = conn.Write([]byte("again"))
	answers("again")
	stop() // hosting is gone
	_, _ = conn.Write([]byte("still"))
	answers("still")
}

func TestTheRouterServesWithoutHosting(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(noWake)
	stop := w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Backend: tlsBackend(t, "plane a")}})
	w.awaitRoutes(1)
	stop()
	if got, err := w.get("a.example"); err != nil || got != "plane a" {
		t.Fatalf("hosting dead: %q, %v", got, err)
	}
	w.stop()
	w.start(nil)
	if got, err := w.get("a.example"); err != nil || got != "plane a" {
		t.Fatalf("hosting dead, router restarted: %q, %v", got, err)
	}
	// A starting hosting does not know its planes yet; the router keeps its routes.
	c = NewControl(noWake)
	w.serveControl(c)
	eventually(t, "the router follows hosting", func() bool { return value(w.router.metrics.following) == 1 })
	if got, err := w.get("a.example"); err != nil || got != "plane a" {
		t.Fatalf("hosting not ready: %q, %v", got, err)
	}
	c.Set([]Route{{ServerName: "b.example", Backend: tlsBackend(t, "plane b")}})
	eventually(t, "the new table is taken", func() bool { got, _ := w.get("b.example"); return got == "plane b" })
	if _, err := w.get("a.example"); err == nil {
		t.Error("the old route is still there")
	}
}

func TestADamagedRouteFileIsReplaced(t *testing.T) {
	w := newWorld(t, nil)
	w.stop()
	if err := os.WriteFile(filepath.Join(w.dir, "routes.json"), []byte(`{"revision":`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start(nil)
	c := NewControl(noWake)
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Backend: tlsBackend(t, "plane a")}})
	w.awaitRoutes(1)
	eventually(t, "the routes are kept", func() bool {
		kept, err := readTable(w.router.tablePath())
		return err == nil && len(kept.Routes) == 1
	})
}

func TestASourceIsAnAddressOrAnIPv6Network(t *testing.T) {
	for addr, want := range map[string]string{"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32",
		"2001:db8:1:2:3::4": "2001:db8:1:2::/64"} {
		if got := sourceOf(addressOf(from{addr: net.ParseIP(addr)})).String(); got != want {
			t.Errorf("%s is %s, want %s", addr, got, want)
		}
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	addr net.IP
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: f.addr, Port: 1} }

func TestClosedConnectionsLeaveNothing(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(func(context.Context, string) (string, error) { return "", errors.New("no") })
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Backend: plainBackend(t, echo)}, {ServerName: "asleep.example",
		Asleep: true}})
	w.awaitRoutes(2)
	round := func() {
		for _, hello := range [][]byte{helloFor("a.example"), helloFor("asleep.example"),
			helloFor("none.example"), []byte("GET / HTTP/1.1\r\n\r\n"), helloWithoutName()} {
			conn := w.send(hello)
			_ = conn.CloseWrite()
			_, _ = io.ReadAll(conn)
			conn.Close()
			aborted := w.send(hello)
			_ = aborted.SetLinger(0) // a reset
			aborted.Close()
		}
	}
	round() // pipes of splice and the like are kept for later
	quiet := func() (goroutines, descriptors int) {
		fds, _ := os.ReadDir("/proc/self/fd")
		return runtime.NumGoroutine(), len(fds)
	}
	eventually(t, "the first are gone", func() bool { return len(connsOf(w.router)) == 0 })
	goroutines, descriptors := quiet()
	for range 20 {
		round()
	}
	const slack = 20 // against 200 connections
	eventually(t, "nothing is left", func() bool {
		runtime.GC() // closes pipes that splice no longer keeps
		g, d := quiet()
		return len(connsOf(w.router)) == 0 && g <= goroutines+slack && d <= descriptors+slack
	})
}

func connsOf(r *Router) []net.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	var conns []net.Conn
	for c := range r.conns {
		conns = append(conns, c)
	}
	return conns
}
