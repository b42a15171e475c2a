package inprocess

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
)

var alice = &user.DefaultInfo{Name: "alice", Groups: []string{"friends"}}

// client returns a client of a server with the handler.
func client(handler http.HandlerFunc) *http.Client {
	s := New()
	s.Serve(handler)
	return &http.Client{Transport: s.Transport(alice)}
}

func get(t *testing.T, ctx context.Context, c *http.Client) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", "https://plane/path?q=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(r)
}

type outer struct{}

func TestARequestReachesTheHandlerAsItsUser(t *testing.T) {
	c := client(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got, ok, err := Authenticate(r)
		if err != nil || !ok || got.User != user.Info(alice) {
			t.Errorf("authenticated as %+v, %v, %v", got, ok, err)
		}
		if r.Context().Value(outer{}) != nil {
			t.Error("the handler sees a value of the client's context")
		}
		if r.TLS == nil || r.RemoteAddr != "127.0.0.1:0" || r.RequestURI != "/path?q=1" || r.Host != "plane" {
			t.Errorf("TLS %v, from %s, URI %s, host %s", r.TLS, r.RemoteAddr, r.RequestURI, r.Host)
		}
		r.Header.Set("Mine", "changed")
		w.Header().Set("Answer", "yes")
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("Answer", "too late")
		fmt.Fprintf(w, "%s %s", r.Method, body)
	})
	ctx := context.WithValue(t.Context(), outer{}, 1)
	r, err := http.NewRequestWithContext(ctx, "POST", "https://plane/path?q=1", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Mine", "kept")
	response, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != "POST hello" || response.StatusCode != http.StatusTeapot ||
		response.ContentLength != int64(len(body)) || response.Header.Get("Answer") != "yes" {
		t.Errorf("%s, %d bytes, header %v: %q, %v", response.Status, response.ContentLength, response.Header, body, err)
	}
	if got := r.Header.Get("Mine"); got != "kept" {
		t.Errorf("the handler changed the client's header: %s", got)
	}
}

func TestOthersAreNotAuthenticated(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	if got, ok, err := Authenticate(r); got != nil || ok || err != nil {
		t.Errorf("a request of the network is %+v, %v, %v", got, ok, err)
	}
}

func TestAHandlerThatWritesNothingSucceeds(t *testing.T) {
	response, err := get(t, t.Context(), client(func(http.ResponseWriter, *http.Request) {}))
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("%+v, %v", response, err)
	}
}

// A watch gets each event when the handler flushes it, and not before.
func TestFlushedPartsAreReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := make(chan bool)
		response, err := get(t, t.Context(), client(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			for n := 0; <-next; n++ {
				fmt.Fprintf(w, "event %d", n)
				if <-next {
					w.(http.Flusher).Flush()
				}
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		parts := make(chan string, 10)
		go func() {
			defer close(parts)
			for buffer := make([]byte, 100); ; {
				n, err := response.Body.Read(buffer)
				if n > 0 {
					parts <- string(buffer[:n])
				}
				if err != nil {
					parts <- err.Error()
					return
				}
			}
		}()
		for n := range 2 {
			next <- true
			synctest.Wait()
			if len(parts) != 0 {
				t.Error("a part was read before it was flushed")
			}
			next <- true
			if got, want := <-parts, fmt.Sprintf("event %d", n); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		next <- false
		if got := <-parts; got != "EOF" {
			t.Errorf("the end is %q", got)
		}
	})
}

// A handler that waits for its client ends when the client goes.
func TestAClientThatGoesEndsTheHandler(t *testing.T) {
	for name, leave := range map[string]func(io.Closer, context.CancelFunc){
		"closes the body":     func(body io.Closer, _ context.CancelFunc) { body.Close() },
		"cancels the context": func(_ io.Closer, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				response, err := get(t, ctx, client(func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					<-w.(http.CloseNotifier).CloseNotify() //nolint:staticcheck // upstream's filters use it
					_, err := w.Write([]byte("x"))
					ended <- err
				}))
				if err != nil {
					t.Fatal(err)
				}
				leave(response.Body, cancel)
				if err := <-ended; err != io.ErrClosedPipe {
					t.Errorf("the handler could write, or %v", err)
				}
				if n, err := response.Body.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
					t.Errorf("read %d, %v", n, err)
				}
			})
		})
	}
}

func TestAClientDoesNotWaitForTheHeaderLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := client(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
		if _, err := get(t, ctx, c); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		early := &http.Client{Transport: New().Transport(alice)} // without a handler
		if _, err := get(t, ctx, early); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestARequestWaitsForTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		status := make(chan int)
		go func() {
			response, err := get(t, t.Context(), &http.Client{Transport: s.Transport(alice)})
			if err != nil {
				t.Error(err)
			}
			status <- response.StatusCode
		}()
		synctest.Wait()
		s.Serve(http.NotFoundHandler())
		if got := <-status; got != http.StatusNotFound {
			t.Error(got)
		}
	})
}

// The buffer is bounded: the handler of a large response waits for its client.
func TestALargeResponseIsReadInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 10 * maxUnread
		written := make(chan int, 1)
		response, err := get(t, t.Context(), client(func(w http.ResponseWriter, _ *http.Request) {
			n, err := w.Write([]byte(strings.Repeat("0123456789abcdef", size/16)))
			if err != nil {
				t.Error(err)
			}
			written <- n
		}))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(written) != 0 {
			t.Error("the handler wrote everything before the client read")
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || len(body) != size || strings.Trim(string(body), "0123456789abcdef") != "" {
			t.Errorf("read %d bytes, %v", len(body), err)
		}
		if n := <-written; n != size {
			t.Errorf("wrote %d bytes", n)
		}
	})
}

func TestTheAnswerToHEADHasNoBody(t *testing.T) {
	for announced, want := range map[string]int64{"": -1, "5": 5} {
		response, err := client(func(w http.ResponseWriter, _ *http.Request) {
			if announced != "" {
				w.Header().Set("Content-Length", announced)
			}
			fmt.Fprint(w, "hello")
		}).Head("https://plane/path")
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); len(body) > 0 || err != nil || response.ContentLength != want {
			t.Errorf("announced %q: %d bytes of %d, %v", announced, len(body), response.ContentLength, err)
		}
	}
}

func TestAPanicIsAnErrorOfTheClient(t *testing.T) {
	for _, problem := range []any{http.ErrAbortHandler, "a bug"} {
		if _, err := get(t, t.Context(), client(func(http.ResponseWriter, *http.Request) { panic(problem) })); err == nil {
			t.Errorf("%v: no error before the header", problem)
		}
		response, err := get(t, t.Context(), client(func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("part"))
			panic(problem)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); string(body) != "part" || err != io.ErrUnexpectedEOF {
			t.Errorf("%v: read %q, %v", problem, body, err)
		}
	}
}

// An aggregated API that is cut off must not look like one that has fewer objects.
func TestACutOffProxiedResponseIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Write([]byte("part"))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	response, err := get(t, t.Context(), client(httputil.NewSingleHostReverseProxy(target).ServeHTTP))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("read %q without an error", body)
	}
}

// Upstream adds a certificate authority to the configuration when a webhook is the API server itself.
func TestAConfigurationTakesACertificateAuthority(t *testing.T) {
	s := New()
	s.Serve(http.NotFoundHandler())
	c := s.Config("https://127.0.0.1:6443", alice)
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	c.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	transport, err := rest.TransportFor(c)
	if err != nil {
		t.Fatal(err)
	}
	response, err := get(t, t.Context(), &http.Client{Transport: transport})
	if err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("%+v, %v", response, err)
	}
}
