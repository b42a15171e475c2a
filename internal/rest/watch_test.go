package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

var quiet = Options{Log: slog.New(slog.DiscardHandler)}

func watchServer(t *testing.T, o WatchOptions, feed func(context.Context, *Stream) error) *httptest.Server {
	mux := NewMux()
	mux.Handle("GET /", func(w http.ResponseWriter, r *http.Request) error { return Watch(w, r, o, feed) })
	srv := httptest.NewServer(Observe(quiet, mux))
	t.Cleanup(func() { srv.Close(); http.DefaultClient.CloseIdleConnections() })
	return srv
}

func TestAWatchSendsEventsAndBookmarks(t *testing.T) {
	next := make(chan struct{})
	srv := watchServer(t, WatchOptions{Bookmark: 5 * time.Millisecond}, func(ctx context.Context, s *Stream) error {
		if err := s.Open("c0"); err != nil {
			return err
		}
		<-next
		if err := s.Send(Event{Type: Added, Object: json.RawMessage(`{"id":"1"}`), Cursor: "c1"}); err != nil {
			return err
		}
		s.Advance("c2")
		<-next
		return Errorf(410, "gone", "the cursor is too old; list again")
	})
	res, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	dec := json.NewDecoder(res.Body)
	read := func() (e Event) {
		t.Helper()
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	if diff := cmp.Diff(Event{Type: Bookmark, Cursor: "c0"}, read()); diff != "" {
		t.Error(diff)
	}
	next <- struct{}{}
	e := read()
	for e.Type == Bookmark {
		e = read()
	}
	if diff := cmp.Diff(Event{Type: Added, Object: json.RawMessage(`{"id":"1"}`), Cursor: "c1"}, e); diff != "" {
		t.Error(diff)
	}
	for e = read(); e.Cursor != "c2"; e = read() { // the first bookmark may have come before Advance
		if e.Type != Bookmark || e.Cursor != "c1" {
			t.Fatalf("got %v", e)
		}
	}
	next <- struct{}{}
	for e.Type == Bookmark {
		e = read()
	}
	if diff := cmp.Diff(Event{Type: Failed, Object: json.RawMessage(
		`{"kind":"Error","code":"gone","reason":"the cursor is too old; list again"}`)}, e); diff != "" {
		t.Error(diff)
	}
	if err := dec.Decode(&e); err != io.EOF {
		t.Errorf("after the error: %v", err)
	}
}

func TestAWatchThatCannotBeginIsAnOrdinaryError(t *testing.T) {
	srv := watchServer(t, WatchOptions{}, func(context.Context, *Stream) error {
		return Errorf(410, "gone", "the cursor is too old; list again")
	})
	res, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 410 {
		t.Errorf("status %d", res.StatusCode)
	}
}

func TestAWatchEndsWithItsClient(t *testing.T) {
	ended := make(chan struct{})
	srv := watchServer(t, WatchOptions{}, func(ctx context.Context, s *Stream) error {
		defer close(ended)
		if err := s.Open(""); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	res, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	<-ended
}

func TestAStalledClientIsDisconnected(t *testing.T) {
	ended := make(chan error, 1)
	srv := watchServer(t, WatchOptions{WriteTimeout: 20 * time.Millisecond}, func(ctx context.Context,
		s *Stream) error {
		object, _ := json.Marshal(strings.Repeat("x", 1<<20))
		for {
			if err := s.Send(Event{Type: Added, Object: object}); err != nil {
				ended <- err
				return err
			}
		}
	})
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") // and never reads
	if err := <-ended; !isTimeout(err) {
		t.Errorf("the feed ended with %v", err)
	}
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

func TestShutdownEndsWatchesAndFinishesRequests(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	mux := NewMux()
	mux.Handle("GET /watch", func(w http.ResponseWriter, r *http.Request) error {
		return Watch(w, r, WatchOptions{}, func(ctx context.Context, s *Stream) error {
			if err := s.Open("c0"); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
	})
	mux.Handle("GET /slow", func(w http.ResponseWriter, r *http.Request) error {
		close(began)
		<-release
		if err := r.Context().Err(); err != nil {
			return err
		}
		return WriteJSON(w, 200, "done")
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() {
		ran <- (&Server{Name: "test", Handler: Observe(quiet, mux), Log: quiet.Log}).Run(ctx, l)
	}()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	watch, err := client.Get("http://" + l.Addr().String() + "/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	slow := make(chan string, 1)
	go func() {
		res, err := client.Get("http://" + l.Addr().String() + "/slow")
		if err != nil {
			slow <- err.Error()
			return
		}
		defer res.Body.Close()
		line, _ := bufio.NewReader(res.Body).ReadString('\n')
		slow <- line
	}()
	<-began
	stop()
	if b, err := io.ReadAll(watch.Body); err != nil || len(b) != 0 {
		t.Errorf("the watch ended with %q, %v", b, err)
	}
	close(release)
	if got := <-slow; got != "\"done\"\n" {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
}
