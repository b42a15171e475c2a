package rest

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/internal/quick"
)

// TestADrainingServerMovesItsClients checks, for both versions of HTTP, that a server that drains executes requests on
// old and new connections, that a client uses no connection again after an answer, and that a watch goes on until
// the listener closes and has a clean end.
func TestADrainingServerMovesItsClients(t *testing.T) {
	quick.LeavesOut(t, "waits for a server that drains")
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP/", version), func(t *testing.T) {
			t.Parallel()
			checkDrain(t, version)
		})
	}
}

func checkDrain(t *testing.T, version int) {
	const drain = 10 * time.Second // much longer than a watch may take to write an event, and a pause of the machine
	mux := NewMux()
	mux.Handle("GET /watch", func(w http.ResponseWriter, r *http.Request) error {
		return Watch(w, r, WatchOptions{WriteTimeout: drain / 5}, func(ctx context.Context, s *Stream) error {
			if err := s.Send(Event{Type: Added, Cursor: "c0"}); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
	})
	mux.Handle("POST /change", func(w http.ResponseWriter, r *http.Request) error {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return err
		}
		return WriteJSON(w, http.StatusOK, "done")
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pair := httptest.NewUnstartedServer(nil) // for its certificate and its client
	pair.EnableHTTP2 = version == 2
	pair.StartTLS()
	defer pair.Close()
	transport := pair.Client().Transport.(*http.Transport)
	defer transport.CloseIdleConnections()
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() {
		ran <- (&Server{Name: "draining", Handler: Observe(quiet, mux), Log: quiet.Log, Drain: drain,
			TLS: &tls.Config{Certificates: pair.TLS.Certificates}}).Run(ctx, l)
	}()
	defer stop()
	// call sends a change, and returns whether the client took a connection that it had used before.
	call := func() (reused bool) {
		t.Helper()
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), http.MethodPost,
			"https://"+l.Addr().String()+"/change", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 || res.ProtoMajor != version {
			t.Fatalf("%s %v %v", res.Proto, res.Status, err)
		}
		return reused
	}
	call()
	if !call() {
		t.Fatal("a client that waits for its answer opens a connection for each request, also without a drain")
	}
	watcher := transport.Clone()
	defer watcher.CloseIdleConnections()
	watch, err := (&http.Client{Transport: watcher}).Get("https://" + l.Addr().String() + "/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	events := bufio.NewReader(watch.Body)
	if line, err := events.ReadString('\n'); err != nil {
		t.Fatalf("the watch began with %q, %v", line, err)
	}

	stopped := time.Now()
	stop()
	call()       // on the old connection, which its answer closes
	for call() { // a GOAWAY may arrive after the answer before it
	}
	if rest, err := io.ReadAll(events); err != nil || len(rest) > 0 {
		t.Errorf("the watch ended with %q, %v", rest, err)
	}
	if took := time.Since(stopped); took < drain {
		t.Errorf("the watch ended %s after the order to stop, before the listener closed", took)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is open after the end")
	}
}

// TestAServerThatFailsWhileItDrainsSaysSo checks that Run returns a failure of the listener during a drain.
func TestAServerThatFailsWhileItDrainsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		l := &endingListener{failed: make(chan struct{})}
		ran := make(chan error, 1)
		go func() { ran <- (&Server{Name: "failing", Log: quiet.Log, Drain: time.Hour}).Run(ctx, l) }()
		synctest.Wait()
		stop()
		synctest.Wait()
		select {
		case err := <-ran:
			t.Fatalf("the server ended at the beginning of the drain: %v", err)
		default:
		}
		close(l.failed)
		if err := <-ran; err == nil {
			t.Error("no error")
		}
	})
}

// TestAFailureEndsADrain checks that a server whose process has failed does not go on for the time of the drain,
// whether the failure came before the order to stop or after it.
func TestAFailureEndsADrain(t *testing.T) {
	for _, isEarly := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(context.Background())
			l := &endingListener{failed: make(chan struct{})}
			failed, ran := make(chan struct{}), make(chan error, 1)
			server := &Server{Name: "failing", Log: quiet.Log, Drain: time.Hour, Failed: failed}
			go func() { ran <- server.Run(ctx, l) }()
			begun := time.Now()
			if isEarly {
				close(failed)
			}
			synctest.Wait()
			stop()
			synctest.Wait()
			if !isEarly {
				close(failed)
			}
			synctest.Wait()
			close(l.failed) // as Close does for a real listener
			if err := <-ran; err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took >= time.Hour {
				t.Errorf("failure before the stop %v: the server drained for %s", isEarly, took)
			}
		})
	}
}

type endingListener struct{ failed chan struct{} }

func (l *endingListener) Accept() (net.Conn, error) {
	<-l.failed
	return nil, net.ErrClosed
}

func (l *endingListener) Close() error   { return nil }
func (l *endingListener) Addr() net.Addr { return &net.TCPAddr{} }
