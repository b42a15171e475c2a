package router

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"atoll.dev/sni"
	"atoll.dev/test/testsite"
)

// patience is far more than anything takes on a machine that has much else to do.
const patience = 3 * time.Minute

// world is a router with hosting's side of it.
type world struct {
	t       *testing.T
	dir     string
	socket  string
	router  *Router
	address string
	stop    func() // the router
}

// newWorld starts a router. Hosting is not there until serveControl is called.
func newWorld(t *testing.T, change func(*Options)) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, dir: dir, socket: filepath.Join(dir, "control.sock")}
	w.start(change)
	return w
}

func (w *world) start(change func(*Options)) {
	w.t.Helper()
	o := Options{Control: w.socket, Dir: w.dir, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
	if change != nil {
		change(&o)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.router, w.address = New(o), l.Addr().String()
	w.stop = testsite.Run(w.t, "the router", func(ctx context.Context) error { return w.router.Run(ctx, l) })
}

// serveControl begins to serve c on the control socket.
func (w *world) serveControl(c *Control) (stop func()) {
	w.t.Helper()
	l, err := ListenControl(w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	return testsite.Run(w.t, "the control socket", func(ctx context.Context) error { return c.Serve(ctx, l) })
}

// awaitRoutes waits until the router has taken a table with this many routes.
func (w *world) awaitRoutes(n int) {
	w.t.Helper()
	eventually(w.t, "the routes are taken", func() bool {
		w.router.mu.Lock()
		defer w.router.mu.Unlock()
		return len(w.router.routes) == n
	})
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); !ok(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

// connectionsWith is how many connections ended with an outcome.
func (w *world) connectionsWith(o outcome) float64 {
	return value(w.router.metrics.connections.WithLabelValues(string(o)))
}

// value of a counter or gauge.
func value(m prometheus.Metric) float64 {
	var text dto.Metric
	if err := m.Write(&text); err != nil {
		return -1
	}
	return text.GetCounter().GetValue() + text.GetGauge().GetValue()
}

// noWake is of a hosting where nothing sleeps.
func noWake(context.Context, string) (string, error) { return "", errors.New("nothing sleeps here") }

// tlsBackend is a plane that answers each request with its name.
func tlsBackend(t *testing.T, name string) (address string) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// get sends a request to the plane of a name, by TLS through the router.
func (w *world) get(name string) (string, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{ServerName: name, InsecureSkipVerify: true}, // who it is, its answer says
	}
	client := http.Client{Transport: transport, Timeout: patience}
	res, err := client.Get("https://" + w.address)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// dial connects to the router.
func (w *world) dial() *net.TCPConn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// send connects and sends.
func (w *world) send(what []byte) *net.TCPConn {
	w.t.Helper()
	conn := w.dial()
	if _, err := conn.Write(what); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// alertFor returns the router's answer to these bytes.
func (w *world) alertFor(what []byte) string {
	w.t.Helper()
	conn := w.send(what)
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err != nil {
		w.t.Error(err)
	}
	return string(got)
}

// plainBackend is a plane without TLS, to see the bytes that arrive: serve gets
// each connection after the hello has been read.
func plainBackend(t *testing.T, serve func(net.Conn)) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				if _, err := sni.Read(conn); err == nil {
					serve(conn)
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// echo returns its input, and at the end the number of bytes.
func echo(conn net.Conn) {
	n, err := io.Copy(conn, conn)
	if err == nil {
		_, _ = conn.Write([]byte{byte(n >> 16), byte(n >> 8), byte(n)})
	}
}

// helloFor is the smallest ClientHello that names a server.
func helloFor(name string) []byte {
	host := append(binary.BigEndian.AppendUint16([]byte{0}, uint16(len(name))), name...)
	list := append(binary.BigEndian.AppendUint16(nil, uint16(len(host))), host...)
	extension := append(binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(list))), list...)
	return helloRecord(append(binary.BigEndian.AppendUint16(nil, uint16(len(extension))), extension...))
}

// helloWithoutName is a ClientHello without extensions.
func helloWithoutName() []byte { return helloRecord(nil) }

func helloRecord(extensions []byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...) // version, random
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0)       // no session, one suite, no compression
	body = append(body, extensions...)
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append(binary.BigEndian.AppendUint16([]byte{22, 3, 1}, uint16(len(message))), message...)
}
