package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
	"atoll.dev/internal/quick"
	"atoll.dev/internal/rest"
)

func platformFor(t *testing.T, endpoint string) *Client {
	t.Helper()
	p, err := New(Options{
		Endpoint: endpoint, Budget: 3 * time.Second,
		Credentials: Credentials{AccessKeyID: "AKIAAAAAAAAAAAAAAAAA", SecretAccessKey: "s", Region: "local"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// A server fails the first request in some way and answers the second.
func TestCallsAreRepeatedWhereThatIsSafe(t *testing.T) {
	quick.LeavesOut(t, "waits between repeated requests")
	get := func(p *Client) error { _, err := p.Bundle(t.Context(), "a"); return err }
	post := func(p *Client) error {
		_, err := p.RegisterManagementCluster(t.Context(), platform.ManagementClusterRequest{Name: "a"})
		return err
	}
	put := func(p *Client) error {
		_, err := p.ReplaceWork(t.Context(), "a", "m", []byte(`{}`), "")
		return err
	}
	putIf := func(p *Client) error {
		_, err := p.ReplaceWork(t.Context(), "a", "m", []byte(`{}`), `"1"`)
		return err
	}
	del := func(p *Client) error { return p.DeleteWork(t.Context(), "a", "") }
	answer := func(status int, retryAfter string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if retryAfter != "" {
				w.Header().Set("Retry-After", retryAfter)
			}
			w.WriteHeader(status)
		}
	}
	hangup := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, c := range []struct {
		name  string
		first http.HandlerFunc
		call  func(*Client) error
		again bool
	}{
		{"503 to GET", answer(503, ""), get, true},
		{"503 to POST", answer(503, ""), post, false},
		{"503 with Retry-After to POST", answer(503, "1"), post, true},
		{"503 with a long Retry-After", answer(503, "3600"), get, false},
		{"429 to POST", answer(429, "0"), post, true},
		{"502 to GET", answer(502, ""), get, true},
		{"502 to POST", answer(502, ""), post, false},
		{"500 to GET", answer(500, ""), get, false},
		{"404 to GET", answer(404, ""), get, false},
		{"hang-up to GET", hangup, get, true},
		{"hang-up to PUT", hangup, put, true},
		{"hang-up to DELETE", hangup, del, true},
		{"hang-up to POST", hangup, post, false},
		{"hang-up to conditional PUT", hangup, putIf, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int32
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
					t.Error("the request is not signed")
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if calls.Add(1) == 1 {
					c.first(w, r)
					return
				}
				_, _ = io.WriteString(w, `{}`)
			}))
			defer s.Close()
			err := c.call(platformFor(t, s.URL))
			if again := calls.Load() > 1; again != c.again || (err == nil) != c.again {
				t.Errorf("%d calls, %v", calls.Load(), err)
			}
		})
	}
}

func TestErrorsHaveTheServersMessage(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/plain") {
			http.Error(w, "from a proxy", http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(
			w, `{"kind":"Error","code":"maestro-6","reason":"it already exists","errors":[{"field":"name","message":"taken"}]}`)
	}))
	defer s.Close()
	p := platformFor(t, s.URL+"/prod/")
	_, err := p.Bundle(t.Context(), "a")
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != 409 || e.Code != "maestro-6" || e.Reason != "it already exists" || len(e.Fields) != 1 {
		t.Errorf("got %#v", err)
	}
	_, err = p.Bundle(t.Context(), "plain")
	if e, ok = errors.AsType[*remote.Error](err); !ok || e.Status != 403 || e.Code != "http-403" ||
		!strings.Contains(e.Reason, "from a proxy") {
		t.Errorf("got %#v", err)
	}
}

func TestAnUnreachableRegionIsNamed(t *testing.T) {
	// Nobody listens on port 1. A port that was free a moment ago may be another test's by now.
	p, err := New(Options{Endpoint: "http://127.0.0.1:1", Budget: time.Millisecond,
		Credentials: Credentials{AccessKeyID: "a", SecretAccessKey: "s", Region: "local"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Bundle(t.Context(), "a")
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != 503 || e.Code != remote.CodeUnreachable || !e.Unsent {
		t.Errorf("got %#v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Bundle(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
}

func TestCAFileIsChecked(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bad, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{
		{Endpoint: "https://127.0.0.1:1", CAFile: bad}, {Endpoint: "https://127.0.0.1:1", CAFile: bad + "x"},
		{Endpoint: "127.0.0.1:1"}, {},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is accepted", o.Endpoint)
		}
	}
}

// The first stream breaks, the second requests an expired cursor, the third starts over.
func TestFollowContinuesAndRelists(t *testing.T) {
	var cursors []string
	s := httptest.NewServer(rest.Observe(rest.Options{},
		rest.Handler(func(w http.ResponseWriter, r *http.Request) error {
			cursors = append(cursors, r.URL.Query().Get("cursor"))
			n := len(cursors)
			return rest.Watch(w, r, rest.WatchOptions{}, func(_ context.Context, st *rest.Stream) error {
				send := func(typ rest.EventType, object, cursor string) {
					if err := st.Send(rest.Event{Type: typ, Object: []byte(object), Cursor: cursor}); err != nil {
						t.Error(err)
					}
				}
				switch n {
				case 1:
					send(rest.Added, `{"id":"a"}`, "c1")
					return nil
				case 2:
					return rest.Errorf(http.StatusGone, "gone", "too old")
				case 3:
					send(rest.Added, fmt.Sprintf(`{"id":"b","big":%q}`, strings.Repeat("x", 200<<10)), "c2")
					send(rest.Bookmark, `null`, "c3")
					return rest.Errorf(http.StatusServiceUnavailable, "x", "database down")
				}
				send(rest.Deleted, `{"id":"b"}`, "c4")
				return nil
			})
		})))
	defer s.Close()
	done := errors.New("done")
	var got []string
	err := platformFor(t, s.URL).FollowBundles(t.Context(), remote.WatchOptions{}, func(e remote.Event) error {
		got = append(got, string(e.Type)+" "+e.Cursor)
		if e.Type == rest.Deleted {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Errorf("Follow: %v", err)
	}
	if diff := cmp.Diff([]string{"ADDED c1", "RELIST ", "ADDED c2", "BOOKMARK c3", "DELETED c4"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"", "c1", "", "c3"}, cursors); diff != "" {
		t.Errorf("cursors (-want +got):\n%s", diff)
	}
}

func TestFollowEndsWithoutTheRightToWatch(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer s.Close()
	err := platformFor(t, s.URL).FollowBundles(t.Context(), remote.WatchOptions{}, func(remote.Event) error {
		return nil
	})
	if remote.StatusOf(err) != http.StatusForbidden {
		t.Errorf("got %v", err)
	}
}

// A watch goes on after the end of its token, from its cursor and with the next token. When there is no next one, the
// watch ends with an error.
func TestAWatchGoesOnWithTheNextToken(t *testing.T) {
	var streams atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := streams.Add(1)
		token, cursor := r.Header.Get("Authorization"), r.URL.Query().Get("cursor")
		if token != fmt.Sprintf("Bearer t%d", n) || n > 1 && cursor != fmt.Sprintf("c%d", n-1) {
			t.Errorf("stream %d has the token %q and the cursor %q", n, token, cursor)
		}
		fmt.Fprintf(w, `{"type":"BOOKMARK","cursor":"c%d"}`+"\n", n)
		fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Error","code":"expired-credentials","reason":"get new ones"}}`)
	}))
	defer s.Close()
	var tokens atomic.Int64
	p, err := New(Options{Endpoint: s.URL, Token: func(context.Context) (string, error) {
		switch n := tokens.Add(1); n {
		case 2, 4: // the issuer is away for a moment
			return "", errors.New("the issuer does not answer")
		case 6:
			return "", &remote.SenderError{Err: errors.New("the login expired; sign in again")}
		default:
			return fmt.Sprintf("t%d", n/2+1), nil
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var cursors []string
	err = p.FollowClusters(t.Context(), remote.WatchOptions{}, func(e rest.Event) error {
		cursors = append(cursors, e.Cursor)
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "sign in again") {
		t.Errorf("after the end of the login: %v", err)
	}
	if diff := cmp.Diff([]string{"c1", "c2", "c3"}, cursors); diff != "" {
		t.Error(diff)
	}
}

func TestReadyNamesMissingParts(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(
			w, `{"status":"unavailable","missing":[{"name":"maestro","reason":"Maestro does not answer"}]}`)
	}))
	defer s.Close()
	h, err := platformFor(t, s.URL).Ready(t.Context())
	if remote.StatusOf(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(),
		"maestro: Maestro does not answer") || len(h.Missing) != 1 {
		t.Errorf("got %+v, %v", h, err)
	}
}
