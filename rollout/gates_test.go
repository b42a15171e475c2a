package rollout

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestGatesPassOnlyByWhatTheyRead reads gates of a server that answers by the query: the value of the query value(N),
// and what is wrong otherwise.
func TestGatesPassOnlyByWhatTheyRead(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query().Get("query")
		vector := `{"status":"success","data":{"resultType":"vector","result":[%s]}}`
		one := `{"metric":{},"value":[1,"%s"]}`
		switch {
		case r.URL.Path == "/ready/r1":
		case r.URL.Path == "/login":
		case r.URL.Path == "/ready/moved":
			http.Redirect(w, r, "/login", http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/ready/"):
			w.WriteHeader(503)
		case strings.HasPrefix(query, "value("):
			fmt.Fprintf(w, vector, fmt.Sprintf(one, strings.Trim(query, "value()")))
		case strings.HasPrefix(query, "scalar"):
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`)
		case query == "none":
			fmt.Fprintf(w, vector, "")
		case query == "two":
			fmt.Fprintf(w, vector, fmt.Sprintf(one, "1")+","+fmt.Sprintf(one, "1"))
		case query == "burn r1 s1 300s", query == "burn r1 s1 3600s", query == "burn r2 s1 300s":
			fmt.Fprintf(w, vector, fmt.Sprintf(one, "0.02"))
		case strings.HasPrefix(query, "burn"):
			fmt.Fprintf(w, vector, fmt.Sprintf(one, "0.001"))
		case query == `cluster mc01-r1`:
			fmt.Fprintf(w, vector, fmt.Sprintf(one, "1"))
		case query == "matrix":
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
		case query == "partial":
			fmt.Fprint(w, `{"status":"success","warnings":["no answer of store-2"],"data":{"resultType":"scalar",`+
				`"result":[1,"1"]}}`)
		case query == "html":
			fmt.Fprint(w, "<html>")
		default:
			w.WriteHeader(400)
			fmt.Fprint(w, `{"status":"error","error":"parse error"}`)
		}
	}))
	defer server.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	one := 1.0
	atLeast := func(query string) Gate { return Gate{Name: "g", Query: query, AtLeast: &one} }
	atMost := func(query string) Gate { return Gate{Name: "g", Query: query, AtMost: &one} }
	burn := Gate{Name: "g", Burn: &Burn{Query: "burn $region $sector $window", Objective: 0.999}}
	fleet := Fleet{Sectors: []string{"s1"}, Regions: []Region{{Name: "r1", Sector: "s1"}, {Name: "r2", Sector: "s1"}}}
	for _, c := range []struct {
		gate   Gate
		target Target
		want   Verdict
		reason string
	}{
		{atLeast("value(1)"), "r1", Passing, ""},
		{atLeast("value(0.9)"), "r1", Failing, "gate g: 0.9 is less than 1"},
		{atMost("value(1)"), "r1", Passing, ""},
		{atMost("value(2)"), "r1", Failing, "gate g: 2 is more than 1"},
		{atMost("value(+Inf)"), "r1", Failing, "+Inf is more than 1"},
		{atLeast("scalar"), "r1", Passing, ""},
		{atLeast("cluster $cluster"), "r1/mc01", Passing, ""},
		{atLeast("value(NaN)"), "r1", Unreadable, "no number"},
		{atLeast("value(+Inf)"), "r1", Unreadable, "infinite value +Inf"},
		{atMost("value(-Inf)"), "r1", Unreadable, "infinite value -Inf"},
		{atLeast("none"), "r1", Unreadable, "the query has 0 values"},
		{atLeast("two"), "r1", Unreadable, "the query has 2 values"},
		{atLeast("matrix"), "r1", Unreadable, "type \"matrix\""},
		{atLeast("html"), "r1", Unreadable, "answers 200"},
		{atMost("partial"), "r1", Unreadable, "not complete: no answer of store-2"},
		{atLeast("wrong"), "r1", Unreadable, "answers 400: parse error"},
		{burn, "r1", Failing, "the limit is 0.0144"},
		{burn, "r2", Passing, ""}, // the short window alone is a peak
		{Gate{Name: "g", URL: server.URL + "/ready/$region"}, "r1", Passing, ""},
		{Gate{Name: "g", URL: server.URL + "/ready/$region"}, "r2", Failing, "answers 503"},
		{Gate{Name: "g", URL: server.URL + "/ready/moved"}, "r1", Failing, "answers 302"},
		{Gate{Name: "g", URL: closed.URL}, "r1", Unreadable, "cannot be reached"},
	} {
		r := Rollout{Prometheus: server.URL, Gates: []Gate{c.gate}}
		got := Gates{}.Read(context.Background(), r, fleet, []Target{c.target})[c.target]
		if got.Verdict != c.want || !strings.Contains(got.Reason, c.reason) {
			t.Errorf("%s %s %v: got %v, want %s %q", c.target, c.gate.Query, c.gate.Burn, got, c.want, c.reason)
		}
	}
	// A failing gate counts before one that cannot be read, whatever their order is.
	r := Rollout{Prometheus: server.URL, Gates: []Gate{atLeast("none"), atMost("value(2)")}}
	if got := (Gates{}).Read(context.Background(), r, fleet, []Target{"r1"})["r1"]; got.Verdict != Failing {
		t.Errorf("got %v, want failing", got)
	}
	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	if got := (Gates{}).Read(stopped, r, fleet, []Target{"r1"})["r1"]; got.Verdict != Unreadable {
		t.Errorf("without a context: %v", got)
	}
}
