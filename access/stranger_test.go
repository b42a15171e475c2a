package access

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"atoll.dev/internal/quick"
	"atoll.dev/internal/rest"
)

// serveRouter runs the stack of a front behind a real server until the test ends, and returns its
// address.
func serveRouter(t *testing.T, rt *Router, limits rest.ConnLimits) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	server := &rest.Server{Name: "platform", Handler: rest.Observe(rest.Options{Log: quiet}, rest.Compress(rt)),
		Log: quiet, Limits: limits}
	go func() { ended <- server.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// sendFrom connects from a loopback address and sends bytes.
func sendFrom(t *testing.T, source, addr string, bytes []byte) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Minute}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write(bytes); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

const publicWithoutItsBody = "GET /api/v0/live HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"

// unprovenWithoutItsBody returns a request with the id of a known key and no declared hash, which
// is verified after its body; the body does not come.
func unprovenWithoutItsBody(t *testing.T) []byte {
	r := request(t, "POST", "/x", "1")
	sdkSign(t, r, "1", time.Now())
	sent := wire(t, r)
	return sent[:len(sent)-1]
}

// Strangers who withhold the bodies of public requests, and of requests with the id of a known key,
// keep nobody out.
func TestStrangersKeepNobodyOut(t *testing.T) {
	rt := NewRouter(Options{Log: quiet, Identifier: &Verifier{Region: testRegion, Keys: testKeys()}})
	handleEverything(rt, func(http.ResponseWriter, *http.Request) error { return nil })
	addr := serveRouter(t, rt, rest.ConnLimits{Total: 40, PerSource: 10})
	unproven := unprovenWithoutItsBody(t)
	for i := range 200 {
		held := []byte(publicWithoutItsBody)
		if i%2 == 0 {
			held = unproven
		}
		sendFrom(t, fmt.Sprintf("127.0.1.%d", i%50+1), addr, held)
		if i%20 != 19 {
			continue
		}
		r := request(t, "GET", "/x", "")
		sdkSign(t, r, "", time.Now())
		conn := sendFrom(t, "127.0.0.1", addr, wire(t, r))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("a customer after %d requests without bodies: %v %v", i+1, res, err)
		}
		res.Body.Close()
	}
}

// A public request whose body does not come is answered at once, and its connection closed within
// seconds, not after the 60 s of the server.
func TestAPublicRequestGetsNoTimeForABody(t *testing.T) {
	quick.LeavesOut(t, "waits for the time limit of bodies")
	rt := NewRouter(Options{Log: quiet, Identifier: testVerifier()})
	handleEverything(rt, func(http.ResponseWriter, *http.Request) error { return nil })
	addr := serveRouter(t, rt, rest.ConnLimits{})
	for _, head := range []string{publicWithoutItsBody,
		"GET /api/v0/live HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"} {
		begun := time.Now()
		conn := sendFrom(t, "127.0.0.1", addr, []byte(head))
		_ = conn.SetDeadline(begun.Add(30 * time.Second))
		all, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200 ") {
			t.Errorf("after %s: %v %s", time.Since(begun), err, all)
		}
	}
}

// deadlineRecorder records the read deadline of a connection.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (w *deadlineRecorder) SetReadDeadline(at time.Time) error {
	w.deadline = at
	return nil
}

// The body of an unproven sender has ten seconds. A sender who declared the hash of the body has the
// time of the server.
func TestTheBodyOfAnUnprovenSenderHasAShortDeadline(t *testing.T) {
	rt := NewRouter(Options{Log: quiet, Identifier: testVerifier()})
	handleEverything(rt, func(http.ResponseWriter, *http.Request) error { return nil })
	unproven := request(t, "POST", "/x", "{}")
	sdkSign(t, unproven, "{}", testTime)
	w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	before := time.Now()
	rt.ServeHTTP(w, unproven)
	if w.Code != http.StatusOK || w.deadline.Before(before) || w.deadline.After(time.Now().Add(unprovenBodyTimeout)) {
		t.Errorf("unproven: %d, deadline %s", w.Code, w.deadline.Sub(before))
	}
	w = &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	rt.ServeHTTP(w, signedRequest(t, "{}", testTime, creds))
	if w.Code != http.StatusOK || !w.deadline.IsZero() {
		t.Errorf("proven: %d, deadline %s", w.Code, w.deadline)
	}
}
