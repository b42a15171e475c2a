package clm

import (
	"bufio"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// With statuses=true one answer has a resource and its reports, of one version.
func TestStatusesAreShownOnRequest(t *testing.T) {
	a := start(t)
	id := a.cluster("abc")
	shown := func(body []byte) (adapters string) {
		t.Helper()
		var r struct {
			ID       string
			Statuses []struct{ Adapter string }
		}
		if err := json.Unmarshal(body, &r); err != nil || r.ID != id {
			t.Fatalf("%s, %v", body, err)
		}
		for _, s := range r.Statuses {
			adapters += s.Adapter + " "
		}
		return adapters
	}
	list := func(query string) []byte {
		t.Helper()
		var l struct{ Items []json.RawMessage }
		if err := json.Unmarshal(a.do("GET", "/clusters"+query, "").want(200).body, &l); err != nil ||
			len(l.Items) != 1 {
			t.Fatalf("%v, %v", l, err)
		}
		return l.Items[0]
	}
	is(t, "before any report", shown(a.do("GET", "/clusters/"+id+"?statuses=true", "").want(200).body), "")
	w := a.watchRaw(t, "/clusters?watch=true&statuses=true")
	is(t, "in a watch", shown(w()), "")
	a.do("PUT", "/clusters/"+id+"/statuses", statusBody("dns", 1, time.Now(), "True")).want(201)
	is(t, "in a watch, after", shown(w()), "dns ")
	got := a.do("GET", "/clusters/"+id+"?statuses=true", "")
	is(t, "its version", got.at("version"), version(got))
	is(t, "one", shown(a.do("GET", "/clusters/"+id+"?statuses=true", "").want(200).body), "dns ")
	is(t, "one, unasked", shown(a.do("GET", "/clusters/"+id, "").want(200).body), "")
	is(t, "listed", shown(list("?statuses=1")), "dns ")
	is(t, "listed, unasked", shown(list("?statuses=false")), "")
	is(t, "a part", shown(list("?statuses=true&fields=name")), "dns ")
	a.do("GET", "/clusters?statuses=perhaps", "").want(400, "VAL-005")
}

// watchRaw opens a watch and returns what waits for its next object.
func (a *testAPI) watchRaw(t *testing.T, path string) (next func() []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", a.base+basePath+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Test-Name", a.caller.Name)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	lines := bufio.NewScanner(res.Body)
	return func() []byte {
		t.Helper()
		for lines.Scan() {
			var e struct{ Object json.RawMessage }
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			if e.Object != nil {
				return e.Object
			}
		}
		t.Fatalf("the watch ended: %v", lines.Err())
		return nil
	}
}
