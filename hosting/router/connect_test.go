package router

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// dialRaw connects to the router and sends a text.
func (w *world) dialRaw(text string) net.Conn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

func TestAConnectNamesThePlaneOfAHelloWithoutName(t *testing.T) {
	w := newWorld(t, nil)
	c := NewControl(noWake)
	w.serveControl(c)
	c.Set([]Route{{ServerName: "hc-a.test", Backend: tlsBackend(t, "a")},
		{ServerName: "hc-b.test", Backend: tlsBackend(t, "b")}, {ServerName: "hc-c.test", Backend: "127.0.0.1:1"}})
	w.awaitRoutes(3)
	for _, name := range []string{"a", "b"} {
		conn := w.dialRaw("CONNECT HC-" + strings.ToUpper(name) + ".test:443 HTTP/1.1\r\nHost: ignored\r\n\r\n")
		answer := make([]byte, len(connected))
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != string(connected) {
			t.Fatalf("the answer to CONNECT is %q, %v", answer, err)
		}
		inner := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the hello has no name
		if _, err := io.WriteString(inner, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(inner), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || string(body) != name {
			t.Errorf("the plane of %s answers %q, %v", name, body, err)
		}
	}
	for name, text := range map[string]struct{ connect, want string }{
		"no plane has the name":  {"CONNECT hc-x.test:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 404"},
		"the plane is away":      {"CONNECT hc-c.test:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 502"},
		"another port":           {"CONNECT hc-a.test:22 HTTP/1.1\r\n\r\n", string(alertUnrecognizedName)},
		"an address":             {"CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 404"},
		"another method":         {"COPY hc-a.test:443 HTTP/1.1\r\n\r\n", string(alertUnrecognizedName)},
		"another version":        {"CONNECT hc-a.test:443 HTTP/2\r\n\r\n", string(alertUnrecognizedName)},
		"nothing but a method":   {"CONNECT\r\n\r\n", string(alertUnrecognizedName)},
		"more than a name needs": {"CONNECT " + strings.Repeat("a", maxConnect), string(alertUnrecognizedName)},
	} {
		t.Run(name, func(t *testing.T) {
			conn := w.dialRaw(text.connect)
			answer := make([]byte, len(text.want))
			if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != text.want {
				t.Errorf("the answer is %q, %v, want %q", answer, err, text.want)
			}
		})
	}
}

// The machine of a customer stops when the router knows no such cluster for long, so a limit has another answer.
func TestALimitIsNotAnsweredAsAnUnknownName(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits = Limits{PerName: 1} })
	w.serveEcho([]string{"a.example"}, nil)
	if !isServed(w.send(probe("a.example"))) { // stays open
		t.Fatal("the first connection is not served")
	}
	for text, want := range map[string]string{
		string(probe("a.example")):               string(alertInternalError),
		"CONNECT a.example:443 HTTP/1.1\r\n\r\n": "HTTP/1.1 502",
		string(probe("x.example")):               string(alertUnrecognizedName),
		"CONNECT x.example:443 HTTP/1.1\r\n\r\n": "HTTP/1.1 404",
	} {
		answer := make([]byte, len(want))
		if _, err := io.ReadFull(w.dialRaw(text), answer); err != nil || string(answer) != want {
			t.Errorf("the answer to %q is %q, %v, want %q", text, answer, err, want)
		}
	}
}

// A CONNECT that comes byte by byte is read to its end, and not into the hello that follows.
func TestAConnectIsReadToItsEnd(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	text := "CONNECT hc-a.test:443 HTTP/1.1\r\nA: b\r\n\r\n"
	go func() {
		for i := range text {
			fmt.Fprint(client, text[i:i+1])
		}
		fmt.Fprint(client, "hello")
	}()
	want, err := readWish(server)
	if err != nil || want.serverName != "hc-a.test" || !want.isConnect() {
		t.Fatalf("it is read as %+v, %v", want, err)
	}
	rest := make([]byte, len("hello"))
	if _, err := io.ReadFull(server, rest); err != nil || string(rest) != "hello" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}
