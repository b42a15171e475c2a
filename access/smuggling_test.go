package access

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/client"
)

// seenRequest is what a handler got.
type seenRequest struct {
	method, path, body, id string
}

// listener serves a front on a real socket and remembers what its handlers got.
type listener struct {
	*httptest.Server
	mu   sync.Mutex
	seen []seenRequest
}

func listen(t *testing.T) *listener {
	l := &listener{}
	l.Server = httptest.NewServer(front(func(w http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		caller, _ := FromContext(r.Context())
		l.mu.Lock()
		defer l.mu.Unlock()
		l.seen = append(l.seen, seenRequest{r.Method, r.URL.Path, string(body), caller.AccessKeyID})
		return err
	}, quiet, testKeys(), nil))
	t.Cleanup(l.Close)
	return l
}

// send writes bytes on a connection of their own, and returns the statuses of all answers until the server closes it.
func (l *listener) send(t *testing.T, raw string) (statuses []int) {
	t.Helper()
	conn, err := net.Dial("tcp", l.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	for {
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			return statuses
		}
		_, _ = io.Copy(io.Discard, res.Body)
		statuses = append(statuses, res.StatusCode)
	}
}

// taken returns what the handlers got since the last call.
func (l *listener) taken() []seenRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := l.seen
	l.seen = nil
	return seen
}

// signedWire returns a signed request as a client sends it.
func signedWire(t *testing.T, method, target, body string) string {
	t.Helper()
	r := request(t, method, target, body)
	if err := client.Sign(r, []byte(body), creds, testTime); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What is ambiguous about a signed request on the wire is refused, or the handler gets what was signed, once: never
// another path, method or body, and never a second request with the identity of the first.
func TestI10AmbiguousRequestsOnTheWire(t *testing.T) {
	l := listen(t)
	get, post := signedWire(t, "GET", "/api/v0/x", ""), signedWire(t, "POST", "/api/v0/x", "{}")
	header := func(name string) string {
		for line := range strings.Lines(get) {
			if strings.HasPrefix(line, name+":") {
				return line
			}
		}
		t.Fatalf("the request has no %s:\n%s", name, get)
		return ""
	}
	authorization, date := header("Authorization"), header("X-Amz-Date")
	forged := "Authorization: AWS4-HMAC-SHA256 Credential=x\r\n"
	replace := func(of, old, by string) string {
		if !strings.Contains(of, old) {
			t.Fatalf("the request has no %q", old)
		}
		return strings.Replace(of, old, by, 1)
	}
	smuggled := "DELETE /api/v0/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
	served := func(method, body string) []seenRequest { return []seenRequest{{method, "/api/v0/x", body, testID}} }
	for _, c := range []struct {
		name, raw string
		want      []seenRequest // the only ones that a handler may get
	}{
		{"the request", get, served("GET", "")},
		{"the request with a body", post, served("POST", "{}")},
		{"the same Authorization twice", replace(get, authorization, authorization+authorization), nil},
		{"another Authorization before", replace(get, authorization, forged+authorization), nil},
		{"another Authorization behind", replace(get, authorization, authorization+forged), nil},
		{"an Authorization in other letters", replace(get, authorization, "AUTHORIZATION: Bearer x\r\n"+authorization), nil},
		{"a token beside", replace(get, authorization, authorization+"Authorization: Bearer x\r\n"), nil},
		{"two dates", replace(get, date, date+date), nil},
		{"another date", replace(get, date, "X-Amz-Date: 20260301T120001Z\r\n"+date), nil},
		{"two hosts", replace(get, "Host: api.example.com\r\n", "Host: api.example.com\r\nHost: evil.example.com\r\n"), nil},
		{"no host", replace(get, "Host: api.example.com\r\n", ""), nil},
		{"another host", replace(get, "Host: api.example.com", "Host: evil.example.com"), nil},
		{"an absolute URI of the host", replace(get, "GET /", "GET https://api.example.com/"), served("GET", "")},
		{"an absolute URI of another host", replace(get, "GET /", "GET https://evil.example.com/"), nil},
		{"an authority for a path", replace(get, "GET /api/v0/x", "GET api.example.com:443"), nil},
		{"two lengths", replace(post, "Content-Length: 2\r\n", "Content-Length: 2\r\nContent-Length: 3\r\n"), nil},
		{"a list of lengths", replace(post, "Content-Length: 2\r\n", "Content-Length: 2, 3\r\n"), nil},
		{"a length with a sign", replace(post, "Content-Length: 2\r\n", "Content-Length: +2\r\n"), nil},
		{"a length and chunks", replace(post, "Content-Length: 2\r\n", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"),
			nil},
		{"a length and chunks, and a request behind", strings.TrimSuffix(replace(post, "Content-Length: 2\r\n",
			"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"), "{}") + "2\r\n{}\r\n0\r\n\r\n" + smuggled,
			served("POST", "{}")},
		{"chunks of another coding", replace(post, "Content-Length: 2\r\n", "Transfer-Encoding: xchunked\r\n"), nil},
		{"chunks twice", replace(post, "Content-Length: 2\r\n",
			"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), nil},
		{"chunks with a space before the colon", replace(post, "Content-Length: 2\r\n",
			"Content-Length: 2\r\nTransfer-Encoding : chunked\r\n"), nil},
		{"a request behind", post + smuggled, served("POST", "{}")},
		{"a request in a longer body", replace(post, "{}", "{}"+smuggled), served("POST", "{}")},
		{"a body that was not signed", replace(get, "\r\n\r\n", fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n%s", len(smuggled),
			smuggled)), nil},
		{"a folded header", replace(get, date, strings.Replace(date, ": ", ":\r\n ", 1)), served("GET", "")},
		{"a space before a colon", replace(get, "Authorization:", "Authorization :"), nil},
		{"a line feed in a header", replace(get, authorization, strings.TrimSpace(authorization)+"\nX: y\r\n"),
			served("GET", "")},
		{"a carriage return in a header", replace(get, authorization, strings.TrimSpace(authorization)+"\rX: y\r\n"), nil},
		{"a zero in a header", replace(get, authorization, strings.TrimSpace(authorization)+"\x00\r\n"), nil},
		{"a method in small letters", replace(get, "GET ", "get "), nil},
		{"another method", replace(get, "GET ", "PUT "), nil},
		{"a method by a header", replace(get, authorization, authorization+"X-HTTP-Method-Override: DELETE\r\n"),
			served("GET", "")},
		{"another path by a header", replace(get, authorization, authorization+"X-Original-URL: /api/v0/y\r\n"),
			served("GET", "")},
		{"HTTP/1.0", replace(get, "HTTP/1.1", "HTTP/1.0"), served("GET", "")},
		{"HTTP/2.0", replace(get, "HTTP/1.1", "HTTP/2.0"), nil},
	} {
		statuses := l.send(t, c.raw)
		seen := l.taken()
		for i, s := range seen {
			if i >= len(c.want) || s != c.want[i] {
				t.Errorf("%s: a handler got %+v", c.name, s)
			}
		}
		if len(seen) < len(c.want) && strings.HasPrefix(c.name, "the request") {
			t.Errorf("%s: refused with %v", c.name, statuses)
		}
		if len(statuses) == 0 {
			t.Errorf("%s: no answer", c.name)
		}
		for i, status := range statuses {
			if status >= 500 && status != http.StatusHTTPVersionNotSupported && status != http.StatusNotImplemented ||
				status < 300 && i >= len(c.want) {
				t.Errorf("%s: answers %v", c.name, statuses)
			}
		}
	}
}

// A path that another server could read in two ways reaches no handler, also when it is signed as it is sent; and a
// signature is good for its own path only.
func TestI10AmbiguousPathsReachNoHandler(t *testing.T) {
	l := listen(t)
	for _, target := range []string{"/api/v0/clusters/%2e%2e", "/api/v0/clusters/%2e%2e/nodepools", "/api/v0/clusters/.",
		"/api/v0/clusters/%2e", "/api/v0/clusters/..%2fnodepools", "/api/v0/clusters/x%2f..%2f..%2faccounts",
		"/api/v0/clusters/x/../../accounts", "/api/v0//clusters", "//api/v0/clusters", "/api/v0/live/../clusters",
		"/api/v0/clusters/%2F%2Fx", "/api/v0/clusters/x%2f%2e%2e", "/api/v0/live%2f..%2fclusters"} {
		statuses := l.send(t, signedWire(t, "GET", target, ""))
		if seen := l.taken(); len(seen) > 0 || len(statuses) != 1 || statuses[0] < 300 || statuses[0] >= 500 {
			t.Errorf("%s: %v, a handler got %+v", target, statuses, seen)
		}
	}
	signed := signedWire(t, "GET", "/api/v0/clusters/x", "")
	for _, target := range []string{"/api/v0/clusters/%78", "/API/v0/clusters/x", "/api/v0/clusters/X",
		"/api/v0/clusters/x/", "/api/v0/clusters//x", "/api/v0/clusters/./x", "/api/v0/clusters/y/../x",
		"/api/v0/clusters/x?", "/api/v0/clusters/x?a", "/api/v0/clusters/x;a", "/api/v0/clusters/x#a",
		"/api/v0/clusters/x%00", "/api/v0/clusters/x%20", "/prod/api/v0/clusters/x", "/api/v0\\clusters\\x", "*",
		"/api/v0/clusters/x%"} {
		l.send(t, strings.Replace(signed, "GET /api/v0/clusters/x ", "GET "+target+" ", 1))
		for _, s := range l.taken() {
			if s.path != "/api/v0/clusters/x" {
				t.Errorf("%s with the signature of another path: a handler got %+v", target, s)
			}
		}
	}
}
