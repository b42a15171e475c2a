package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answers is CLM that gives one answer after the other.
type answers struct {
	list []any // status codes, or errors
	seen []*http.Request
	at   []time.Time
}

func (a *answers) Do(r *http.Request) (*http.Response, error) {
	a.seen, a.at = append(a.seen, r), append(a.at, time.Now())
	next := a.list[min(len(a.seen), len(a.list))-1]
	if err, ok := next.(error); ok {
		return nil, err
	}
	resp := &http.Response{StatusCode: next.(int), Header: http.Header{}, Body: io.NopCloser(
		strings.NewReader(`{"code":"HYPERFLEET-X-1"}`)), Request: r}
	if next == 429 {
		resp.Header.Set("Retry-After", "7")
	}
	return resp, nil
}

func TestTransientFailuresAreRetried(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	cut := &net.OpError{Op: "read", Err: errors.New("reset")}
	for _, c := range []struct {
		method, backoff string
		answers         []any
		calls, status   int
		atLeast, atMost time.Duration // what is waited
	}{
		// 1 s and 2 s, less a fifth
		{"GET", "", []any{500, 500, 200}, 3, 200, 2400 * time.Millisecond, 3 * time.Second},
		{"GET", "linear", []any{502, 503, 504, 200}, 3, 504, 2400 * time.Millisecond, 3 * time.Second},
		{"GET", "constant", []any{cut, cut, 200}, 3, 200, 1600 * time.Millisecond, 2 * time.Second},
		{"GET", "", []any{404}, 1, 404, 0, 0},
		{"PUT", "", []any{429, 201}, 2, 201, 7 * time.Second, 7 * time.Second},
		{"PUT", "", []any{400, 201}, 1, 400, 0, 0},
		{"POST", "constant", []any{503, 201}, 2, 201, 800 * time.Millisecond, time.Second},
		{"POST", "constant", []any{dial, 201}, 2, 201, 800 * time.Millisecond, time.Second},
		{"POST", "", []any{cut, 201}, 1, 0, 0, 0},
		{"POST", "", []any{500, 201}, 1, 500, 0, 0},
	} {
		t.Run(fmt.Sprint(c.method, c.answers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{list: c.answers}
				config, err := ParseConfig("c.yaml",
					[]byte("adapter: {name: a}\nclients: {hyperfleet_api: {base_url: \"http://clm\"}}"), nil)
				if err != nil {
					t.Fatal(err)
				}
				api, err := newAPIClient(Options{Config: config, API: a, Now: time.Now})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				out, err := api.do(t.Context(), &call{method: c.method, url: &tmpl{text: "/clusters"},
					body: &tmpl{text: "{}"}, backoff: c.backoff}, nil)
				waited := time.Since(began)
				if len(a.seen) != c.calls || waited < c.atLeast || waited > c.atMost {
					t.Errorf("%d calls in %v", len(a.seen), waited)
				}
				status := 0
				if out != nil {
					status = out.status
				}
				if status != c.status || (err == nil) != (status >= 200 && status < 300) {
					t.Errorf("%d %v", status, err)
				}
			})
		})
	}
}

func TestAttemptsAndExecutionsHaveTimeLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := doerFunc(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		e := newEngine(
			t, "params: [{name: a, required: true, source: {api_call: {method: GET, url: /x, timeout: 3s, "+
				"retry_attempts: 2}}}]", nil, nil, func(o *Options) { o.API = hang })
		began := time.Now()
		r := e.Run(t.Context(), Event{ID: "1"})
		if took := time.Since(began); took < 6*time.Second || took > 7*time.Second || r.Status != Failed {
			t.Errorf("%v %+v", took, r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		r = e.Run(ctx, Event{ID: "1"})
		if took := time.Since(began); took != time.Second || !errors.Is(r.Err(), context.DeadlineExceeded) {
			t.Errorf("%v %v", took, r.Err())
		}
	})
}

type doerFunc func(*http.Request) (*http.Response, error)

func (f doerFunc) Do(r *http.Request) (*http.Response, error) { return f(r) }

func TestURLs(t *testing.T) {
	for _, c := range []struct{ base, url, want string }{
		{"http://clm:8000", "/clusters/1", "http://clm:8000/api/hyperfleet/v1/clusters/1"},
		{"http://clm:8000/", "clusters/1?size=100&a=b", "http://clm:8000/api/hyperfleet/v1/clusters/1?size=100&a=b"},
		{"http://clm:8000/prefix", "/api/hyperfleet/v2/x", "http://clm:8000/prefix/api/hyperfleet/v2/x"},
		{"http://clm:8000", "https://other/x", "https://other/x"},
		{"http://clm:8000", "/clusters/../../../../etc", "http://clm:8000/api/hyperfleet/v1/etc"},
		{"http://clm:8000", "//evil/x", ""},
	} {
		config, err := ParseConfig("c.yaml", []byte("adapter: {name: a}\nclients: {hyperfleet_api: {base_url: \""+
			c.base+"\"}}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		api, err := newAPIClient(Options{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		u, err := api.resolve(c.url)
		if got := fmt.Sprint(u); (c.want == "") != (err != nil) || err == nil && got != c.want {
			t.Errorf("%s %s: %s %v", c.base, c.url, got, err)
		}
	}
}

// Token and default headers are CLM's: a task cannot have them sent elsewhere.
func TestTheTokenGoesToCLMOnly(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	now := time.Now()
	a := &answers{list: []any{200}}
	e := newEngine(t, `
params:
- {name: a, source: {api_call: {method: GET, url: /x, headers: [{name: X-Own, value: "{{ .event.id }}"}]}}}
- {name: b, source: {api_call: {method: GET, url: "http://elsewhere/x"}}}
`, nil, nil, func(o *Options) {
		o.API, o.Now = a, func() time.Time { return now }
		o.Config.Clients.API.BaseURL = "http://clm"
		o.Config.Clients.API.DefaultHeaders = map[string]string{"X-Default": "1"}
		o.Config.Clients.API.Auth = &APIAuth{TokenPath: token, TokenCacheTTL: time.Minute}
	})
	sent := func() (out []string) {
		e.Run(t.Context(), Event{ID: "1"})
		for _, r := range a.seen[len(a.seen)-2:] {
			out = append(out, r.Header.Get("Authorization")+"|"+r.Header.Get("X-Default")+"|"+r.Header.Get("X-Own"))
		}
		return out
	}
	if got := sent(); !slices.Equal(got, []string{"Bearer first|1|1", "||"}) {
		t.Errorf("%q", got)
	}
	write("second")
	if got := sent(); got[0] != "Bearer first|1|1" {
		t.Errorf("%q", got)
	}
	now = now.Add(2 * time.Minute)
	if got := sent(); got[0] != "Bearer second|1|1" {
		t.Errorf("%q", got)
	}
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Minute)
	if got := sent(); got[0] != "Bearer second|1|1" {
		t.Errorf("%q", got)
	}
}
