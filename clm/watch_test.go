package clm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/test/testsite"
)

// watched is a watch with the events that it has received.
type watched struct {
	t     *testing.T
	lines chan event
	end   context.CancelFunc
}

type event struct {
	Type   string
	Cursor string
	Object struct {
		ID, Name, Code string
		Adapter        string
		Generation     int
	}
}

func (a *testAPI) watch(t *testing.T, path string) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", a.base+basePath+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Test-Name", a.caller.Name)
	req.Header.Set("X-Test-Org", a.caller.Tenancy["org"])
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{t: t, lines: make(chan event, 10_000), end: cancel}
	if res.StatusCode != 200 {
		defer res.Body.Close()
		cancel()
		t.Fatalf("GET %s: %s", path, res.Status)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(w.lines)
		defer res.Body.Close()
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			var e event
			if err := json.Unmarshal(s.Bytes(), &e); err != nil {
				t.Errorf("%s: %v", s.Text(), err)
			}
			w.lines <- e
		}
	})
	t.Cleanup(func() { cancel(); reader.Wait() })
	return w
}

func (w *watched) next() event {
	w.t.Helper()
	select {
	case e, ok := <-w.lines:
		if !ok {
			w.t.Fatal("the watch ended")
		}
		return e
	case <-time.After(testsite.HangLimit):
		w.t.Fatal("nothing came")
	}
	panic("unreachable")
}

// want takes events; each is "TYPE name".
func (w *watched) want(events ...string) (last event) {
	w.t.Helper()
	for _, want := range events {
		last = w.next()
		if got := strings.TrimSpace(last.Type + " " + last.Object.Name); got != want {
			w.t.Fatalf("got %q, want %q", got, want)
		}
	}
	return last
}

func TestWatch(t *testing.T) {
	a := start(t)
	a.cluster("old")
	all := a.watch(t, "/clusters?watch=true")
	all.want("ADDED old", "BOOKMARK")
	prod := a.watch(t, "/clusters?watch=true&search="+url.QueryEscape("labels.env = 'prod'"))
	prod.want("BOOKMARK")
	path := "/clusters/" + a.cluster("new")
	all.want("ADDED new")
	a.do("PATCH", path, `{"labels":{"env":"prod"}}`).want(200)
	all.want("MODIFIED new")
	prod.want("ADDED new")
	a.do("PATCH", path, `{"labels":{"env":"dev"}}`).want(200)
	prod.want("DELETED new")
	all.want("MODIFIED new")
	a.do("DELETE", path, "").want(202)
	all.want("MODIFIED new")
	a.report(path, "dns", 4, "False", "True").want(201)
	all.want("MODIFIED new") // or it may be one change with the next
	// Not every event has a cursor, but every list has one.
	missed := a.do("GET", "/clusters", "").want(200).at("cursor")
	a.report(path, "validation", 4, "False", "True").want(201)
	all.want("DELETED new") // the last report and the removal are one change

	// A continued watch sends the missed changes and nothing else.
	again := a.watch(t, "/clusters?watch=true&cursor="+url.QueryEscape(missed))
	if e := again.next(); e.Type != "DELETED" || e.Object.Name != "new" {
		t.Fatalf("%+v", e)
	}
	again.want("BOOKMARK")
	a.do("GET", "/clusters?watch=true&cursor=x.1:1:", "").want(410)
	a.do("GET", "/clusters?watch=perhaps", "").want(400)

	// A list has the cursor from which to watch.
	cursor := a.do("GET", "/clusters", "").want(200).at("cursor")
	a.cluster("later")
	from := a.watch(t, "/clusters?watch=true&fields=name&cursor="+url.QueryEscape(cursor))
	if e := from.want("ADDED later"); e.Object.Generation != 0 {
		t.Errorf("fields were not heeded: %+v", e)
	}
	tenant := *a
	tenant.caller.Tenancy = map[string]string{"org": "1"}
	mine := tenant.watch(t, "/resources?watch=true")
	mine.want("BOOKMARK")
	a.cluster("theirs")
	tenant.cluster("mine")
	mine.want("ADDED mine")
}

// Each watcher sees, for every resource, a state as new as the last change, and
// never an older one after a newer (I1, I4).
func TestI1I4WatchersReceiveEveryChange(t *testing.T) {
	a := start(t)
	const clusters, changes = 10, 20
	watchers := []*watched{a.watch(t, "/clusters?watch=true"), a.watch(t, "/resources?watch=true&kind=Cluster")}
	var wg sync.WaitGroup
	for c := range clusters {
		wg.Go(func() {
			path := "/clusters/" + a.cluster(fmt.Sprintf("c-%d", c))
			for i := range changes {
				a.do("PATCH", path, fmt.Sprintf(`{"labels":{"i":"%d"}}`, i)).want(200)
			}
		})
	}
	for _, w := range watchers {
		latest := map[string]int{}
		for done := 0; done < clusters; {
			e := w.next()
			if e.Type == "BOOKMARK" {
				continue
			}
			if e.Object.Generation <= latest[e.Object.ID] {
				t.Fatalf("%s went from %d to %d", e.Object.Name, latest[e.Object.ID], e.Object.Generation)
			}
			if latest[e.Object.ID] = e.Object.Generation; e.Object.Generation == changes+1 {
				done++
			}
		}
	}
	wg.Wait()
}
