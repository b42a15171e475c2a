package router

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAConnectionWakesAPlaneAndIsServed(t *testing.T) {
	w := newWorld(t, nil)
	var wakes atomic.Int32
	awake := make(chan struct{})
	backend := tlsBackend(t, "plane a")
	c := NewControl(func(ctx context.Context, name string) (string, error) {
		wakes.Add(1)
		select {
		case <-awake:
			return backend, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Asleep: true}})
	w.awaitRoutes(1)
	const clients = 8
	answers := make(chan error, clients)
	for range clients {
		go func() {
			got, err := w.get("a.example")
			if err == nil && got != "plane a" {
				err = errors.New(got)
			}
			answers <- err
		}()
	}
	eventually(t, "all are held, and hosting knows it", func() bool {
		open, _ := c.Activity("a.example")
		return open == clients && wakes.Load() == 1
	})
	close(awake)
	for range clients {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if n := wakes.Load(); n != 1 {
		t.Errorf("%d wakes for connections that came at once", n)
	}
}

func TestAWakeThatFailsClosesTheHeldConnections(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(func(context.Context, string) (string, error) { return "", errors.New("the plane ended") })
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Asleep: true}})
	w.awaitRoutes(1)
	if got := w.alertFor(helloFor("a.example")); got != string(alertInternalError) {
		t.Errorf("%x", got)
	}
	eventually(t, "it is counted", func() bool {
		return w.connectionsWith(outcomeNotWoken) == 1 && value(w.router.metrics.wakes.WithLabelValues("failed")) == 1
	})
}

func TestAConnectionIsHeldUntilHostingIsBack(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(noWake)
	stop := w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Asleep: true}})
	w.awaitRoutes(1)
	stop()
	conn := w.send(append(helloFor("a.example"), 'x'))
	backend := plainBackend(t, echo)
	c = NewControl(func(context.Context, string) (string, error) { return backend, nil })
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Asleep: true}})
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func TestAPlaneThatDoesNotAnswerIsWokenOnce(t *testing.T) {
	w := newWorld(t, nil)
	gone := plainBackend(t, echo)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody listens there now
	c := NewControl(func(context.Context, string) (string, error) { return gone, nil })
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Backend: l.Addr().String()}})
	w.awaitRoutes(1)
	conn := w.send(append(helloFor("a.example"), 'x'))
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("the plane has moved: %v", err)
	}
}

func TestAWakeEndsAtItsLimit(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.WakeLimit = 50 * time.Millisecond })
	ended := make(chan error, 1)
	c := NewControl(func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		select {
		case ended <- ctx.Err():
		default: // an earlier one has ended
		}
		return "", ctx.Err()
	})
	w.serveControl(c)
	c.Set([]Route{{ServerName: "a.example", Asleep: true}})
	w.awaitRoutes(1)
	for limit := time.Now().Add(patience); ; { // on a busy machine the limit may end before hosting hears of the wake
		if got := w.alertFor(helloFor("a.example")); got != string(alertInternalError) {
			t.Errorf("%x", got)
		}
		select {
		case <-ended:
			return
		case <-time.After(time.Second):
		}
		if time.Now().After(limit) {
			t.Fatal("hosting goes on with a wake that nobody awaits")
		}
	}
}

func TestHostingCountsConnections(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(noWake)
	var idle atomic.Int32
	c.OnIdle(func(string) { idle.Add(1) })
	w.serveControl(c)
	if open, last := c.Activity("a.example"); open != 0 || !last.IsZero() {
		t.Errorf("without a route: %d, %s", open, last)
	}
	set := time.Now()
	c.Set([]Route{{ServerName: "a.example", Backend: plainBackend(t, echo)}})
	if _, last := c.Activity("a.example"); last.Before(set) {
		t.Errorf("last is %s, before anything is known", last)
	}
	eventually(t, "the router has taken the table", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.routerRevision != 0 && c.routerRevision == c.table.Revision
	})
	if !c.RouterIsCurrent() {
		t.Error("the router has taken the last table")
	}
	conn := w.send(append(helloFor("a.example"), 'x'))
	_, _ = io.ReadFull(conn, make([]byte, 1))
	opened := time.Now()
	eventually(t, "one is connected", func() bool { open, _ := c.Activity("A.example"); return open == 1 })
	conn.Close()
	eventually(t, "none is", func() bool {
		open, last := c.Activity("a.example")
		return open == 0 && last.After(
			opened)
	})
	eventually(t, "its end is reported", func() bool { return idle.Load() == 1 })

	// The router's end is the end of its connections.
	conn = w.send(append(helloFor("a.example"), 'x'))
	_, _ = io.ReadFull(conn, make([]byte, 1))
	eventually(t, "one is connected again", func() bool { open, _ := c.Activity("a.example"); return open == 1 })
	before := time.Now()
	w.stop()
	eventually(t, "the router is gone", func() bool {
		open, last := c.Activity("a.example")
		return open == 0 && !last.Before(before)
	})
	eventually(t, "its end is reported", func() bool { return idle.Load() == 2 })
	if c.Set(nil); !c.RouterIsCurrent() {
		t.Error("without a router nothing is awaited of it")
	}
}

func TestANameThatHostingDoesNotKnowIsNotWoken(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(func(context.Context, string) (string, error) { return "127.0.0.1:1", nil })
	c.Set([]Route{{ServerName: "a.example", Asleep: true}})
	w.serveControl(c)
	w.awaitRoutes(1)
	for body, want := range map[string]int{`{"server_name":"b.example"}`: http.StatusNotFound,
		`{`: http.StatusBadRequest, `{"server_name":"a.example"}`: http.StatusOK} {
		res, err := w.router.client.Post(controlURL+"/wake", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d", body, res.Status, want)
		}
	}
}

func TestTheControlSocketIsItsOwnersOnlyAndItsPathMayBeLong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "control.sock")
	for range 2 { // the second replaces what the first left
		l, err := ListenControl(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		conn, err := dialControl(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		l.Close()
	}
}
