package adapter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// shelf is a transport that keeps objects in memory.
type shelf struct {
	mu      sync.Mutex
	objects map[identity]Object
	fail    func(op, name string) error // may be nil
	log     []string
	linger  bool // deleted objects stay, as with finalizers
}

func newShelf() *shelf { return &shelf{objects: map[identity]Object{}} }

func (s *shelf) failing(op, name string) error {
	s.log = append(s.log, op+" "+name)
	if s.fail == nil {
		return nil
	}
	return s.fail(op, name)
}

func (s *shelf) Discover(_ context.Context, q Search) (found []Object, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failing("discover", q.Kind); err != nil {
		return nil, err
	}
	keys := slices.SortedFunc(maps.Keys(s.objects), func(a, b identity) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for _, id := range keys {
		if id.APIVersion == q.APIVersion && id.Kind == q.Kind && matches(q, s.objects[id]) {
			found = append(found, s.objects[id])
		}
	}
	return found, nil
}

func (s *shelf) Apply(_ context.Context, a Application) (Applied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := identify(a.Object)
	if err := s.failing("apply", id.Name); err != nil {
		return Applied{}, err
	}
	op := Created
	old, there := s.objects[id]
	if !there && a.OnlyExisting {
		return Applied{Skipped, "it is not made again", nil}, nil
	}
	if there {
		before, _ := generationOf(old)
		switch {
		case before == a.Generation:
			return Applied{Skipped, fmt.Sprintf("generation %d unchanged", before), old}, nil
		case a.Recreate:
			op = Recreated
		default:
			op = Updated
		}
	}
	s.objects[id] = a.Object
	return Applied{op, "", a.Object}, nil
}

func (s *shelf) Delete(_ context.Context, d Deletion) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := identify(d.Object)
	if err := s.failing("delete", id.Name); err != nil {
		return err
	}
	if !s.linger {
		delete(s.objects, id)
	}
	return nil
}

// clm is a fake of CLM's API: answers by method and path, and the received requests.
type clm struct {
	*httptest.Server
	mu       sync.Mutex
	answers  map[string]func() (int, string)
	requests []request
}

type request struct {
	method, path, body string
	header             http.Header
}

func newCLM(t testing.TB, answers map[string]string) *clm {
	c := &clm{answers: map[string]func() (int, string){}}
	for route, body := range answers {
		c.answers[route] = func() (int, string) { return 200, body }
	}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *clm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	c.requests = append(c.requests, request{r.Method, r.URL.RequestURI(), string(body), r.Header})
	answer := c.answers[r.Method+" "+r.URL.Path]
	c.mu.Unlock()
	status, text := 404, `{"code":"HYPERFLEET-NTF-000","detail":"no such route"}`
	if answer != nil {
		status, text = answer()
	} else if r.Method == "PUT" && strings.HasSuffix(r.URL.Path, "/statuses") {
		status, text = 201, `{}`
	}
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// report is the last status report.
func (c *clm) report(t testing.TB) map[string]any {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range slices.Backward(c.requests) {
		if r.method == "PUT" {
			var v map[string]any
			if err := json.Unmarshal([]byte(r.body), &v); err != nil {
				t.Fatalf("%s: %v", r.body, err)
			}
			return v
		}
	}
	t.Fatal("nothing was reported")
	return nil
}

// conditionsOf returns the conditions of a report as type=status(reason).
func conditionsOf(report map[string]any) []string {
	var out []string
	list, _ := report["conditions"].([]any)
	for _, x := range list {
		c := x.(map[string]any)
		out = append(out, fmt.Sprintf("%v=%v(%v)", c["type"], c["status"], c["reason"]))
	}
	return out
}

const clusterID = "0198a3c2-0000-7000-8000-000000000001"

func clusterEvent(generation int64) Event {
	return Event{ID: clusterID, Kind: "Cluster", Href: "/api/hyperfleet/v1/clusters/" + clusterID,
		Generation: generation}
}

const clusterPath = "/api/hyperfleet/v1/clusters/" + clusterID

// today is the tests' time.
func today() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 900_000_000, time.UTC) }

func newEngine(t testing.TB, task string, api *clm, transport Transport, more ...func(*Options)) *Engine {
	t.Helper()
	url := ""
	var doer Doer
	if api != nil {
		url, doer = api.URL, api.Client()
	}
	config, err := ParseConfig("config.yaml", []byte(
		"adapter: {name: cl-test, version: \"0.3\"}\nclients: {hyperfleet_api: {base_url: \""+url+
			"\", base_delay: 1ms, max_delay: 2ms}}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseTask("task.yaml", []byte(task), files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Config: config, Task: parsed, Transport: transport, API: doer, Now: today,
		Log: slog.New(slog.DiscardHandler), LookupEnv: func(string) (string, bool) { return "", false }}
	for _, f := range more {
		f(&o)
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
