package clm

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// setCredit makes a server use remembered states (maxCredit), or read each resource first
// (a large negative number).
func (r *recentResources) setCredit(credit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.credit = credit
}

// Each of two servers remembers what it has written, and uses it although the other one may have
// written the resource since. Both decide on reports as a server that reads each resource first.
func TestI2I3RememberedResourcesChangeNoOutcome(t *testing.T) {
	dsn := pgtest.DSN(t)
	first, second, reader := startOn(t, dsn), startOn(t, dsn), startOn(t, dsn)
	at := time.Now().UTC().Truncate(time.Second).Add(-time.Minute)
	serial := 0
	rapid.Check(t, func(rt *rapid.T) {
		serial++
		remembered := "/clusters/" + first.cluster(fmt.Sprint("remembered-", serial))
		read := "/clusters/" + reader.cluster(fmt.Sprint("read-", serial))
		compare := func(what string, a, b answer) {
			if got, want := outcomeOf(a, at), outcomeOf(b, at); got != want {
				rt.Fatalf("%s: %s with remembered resources, %s without", what, got, want)
			}
		}
		for i := range rapid.IntRange(1, 12).Draw(rt, "requests") {
			first.server.recent.setCredit(maxCredit)
			second.server.recent.setCredit(maxCredit)
			reader.server.recent.setCredit(-1 << 30)
			server := rapid.SampledFrom([]*testAPI{first, second}).Draw(rt, "server")
			what := rapid.SampledFrom([]string{"report", "report", "report", "report", "patch", "delete"}).Draw(rt, "request")
			switch what {
			case "report":
				body := fmt.Sprintf(`{"adapter":%q,"observed_generation":%d,"observed_time":%q,"data":{"n":%d},"conditions":[
					{"type":"Available","status":%q},{"type":"Applied","status":"True"},{"type":"Health","status":"True"},
					{"type":"Finalized","status":%q}]}`,
					rapid.SampledFrom([]string{"dns", "validation"}).Draw(rt, "adapter"),
					rapid.IntRange(1, 3).Draw(rt, "generation"),
					at.Add(time.Duration(rapid.IntRange(0, 3).Draw(rt, "time"))*time.Second).Format(time.RFC3339),
					rapid.IntRange(0, 1).Draw(rt, "data"),
					rapid.SampledFrom([]string{"True", "True", "False", "Unknown"}).Draw(rt, "available"),
					rapid.SampledFrom([]string{"True", "False"}).Draw(rt, "finalized"))
				headers := []string{"X-Atoll-Equal-Time: " + rapid.SampledFrom([]string{"keep", "replace"}).Draw(rt, "tie")}
				if v := rapid.IntRange(0, 6).Draw(rt, "If-Match, 0 is none"); v > 0 {
					headers = append(headers, fmt.Sprintf(`If-Match: "%d-0"`, v))
				}
				compare(body, server.do("PUT", remembered+"/statuses", body, headers...),
					reader.do("PUT", read+"/statuses", body, headers...))
			case "patch":
				body := fmt.Sprintf(`{"spec":{"nodes":%d}}`, i)
				compare(body, server.do("PATCH", remembered, body), reader.do("PATCH", read, body))
			case "delete":
				compare(what, server.do("DELETE", remembered, ""), reader.do("DELETE", read, ""))
			}
			compare("the resource", second.do("GET", remembered, ""), reader.do("GET", read, ""))
			compare("the reports", first.do("GET", remembered+"/statuses", ""), reader.do("GET", read+"/statuses", ""))
		}
	})
}

// outcomeOf returns the status of an answer, its version, and its body without what differs between
// two resources with equal contents: names, and times since a minute before the test.
func outcomeOf(a answer, begin time.Time) string {
	var body any
	_ = json.Unmarshal(a.body, &body)
	var strip func(any) any
	strip = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for _, name := range []string{"id", "href", "name", "instance", "trace_id", "detail"} {
				delete(v, name)
			}
			for name, member := range v {
				v[name] = strip(member)
			}
		case []any:
			for i := range v {
				v[i] = strip(v[i])
			}
		case string:
			if t, err := time.Parse(time.RFC3339Nano, v); err == nil && t.After(begin.Add(30*time.Second)) {
				return "a time of the server"
			}
		}
		return v
	}
	text, _ := json.Marshal(strip(body))
	return fmt.Sprintf("%d, version %q, %s", a.status, version(a), text)
}

// A report at a server whose remembered state is stale is decided by the stored state.
func TestI2AStaleRememberedResourceIsNotWritten(t *testing.T) {
	dsn := pgtest.DSN(t)
	one, two := startOn(t, dsn), startOn(t, dsn)
	path := "/clusters/" + one.cluster("first")
	one.report(path, "dns", 1, "True", "").want(201)
	two.report(path, "validation", 1, "True", "").want(201)
	one.report(path, "dns", 1, "False", "").want(201)
	statuses := two.do("GET", path+"/statuses", "").want(200)
	is(t, "reports", statuses.at("total"), "2")
	is(t, "dns", statuses.at("items.0.conditions.0.status"), "False")

	one.server.recent.setCredit(maxCredit)
	two.do("PATCH", path, `{"spec":{"nodes":7}}`).want(200)
	one.report(path, "dns", 2, "True", "").want(201) // of a generation that the first server does not remember
	is(t, "the generation of dns", two.do("GET", path+"/statuses", "").want(200).at("items.0.observed_generation"), "2")

	one.server.recent.setCredit(maxCredit)
	tag := one.do("GET", path, "").want(200).header.Get("Etag")
	two.report(path, "dns", 2, "False", "").want(201)
	body := `{"adapter":"dns","observed_generation":2,"conditions":[{"type":"Available","status":"True"},
		{"type":"Applied","status":"True"},{"type":"Health","status":"True"}]}`
	one.do("PUT", path+"/statuses", body, "If-Match: "+tag).want(412)

	one.server.recent.setCredit(maxCredit)
	two.do("DELETE", path, "").want(202)
	one.report(path, "dns", 3, "True", "True").want(201)
	two.report(path, "validation", 3, "True", "True").want(201)
	one.do("GET", path, "").want(404)
	one.report(path, "dns", 3, "True", "True").want(404)
}

func TestRecentResourcesAreBounded(t *testing.T) {
	var r recentResources
	resource := func(i, size int) store.Document {
		return store.Document{Kind: "Cluster", ID: fmt.Sprint(i), Spec: make(json.RawMessage, size)}
	}
	for i := range 100 {
		r.put(resource(i, 300_000))
		if r.bytes > maxRecentBytes || len(r.byKey) != r.order.Len() {
			t.Fatalf("%d bytes, %d and %d resources", r.bytes, len(r.byKey), r.order.Len())
		}
	}
	if _, ok := r.get("Cluster", "0"); ok {
		t.Error("the oldest is remembered")
	}
	if _, ok := r.get("Cluster", "99"); !ok || len(r.byKey) < 10 {
		t.Errorf("%d resources are remembered", len(r.byKey))
	}
	r.put(resource(99, maxRecentBytes))
	if _, ok := r.get("Cluster", "99"); ok {
		t.Error("a resource of 32 MB is remembered")
	}
	for i := range 99 {
		r.forget("Cluster", fmt.Sprint(i))
	}
	if r.bytes != 0 || r.order.Len() != 0 {
		t.Errorf("%d bytes of %d resources at the end", r.bytes, r.order.Len())
	}
}

// A server whose resources other servers write reads most of them first.
func TestStaleStatesAreUsedRarely(t *testing.T) {
	var r recentResources
	r.put(store.Document{Kind: "Cluster", ID: "1"})
	old := 0
	for range 1000 {
		if _, ok := r.get("Cluster", "1"); ok {
			old++
			r.recordStale()
		}
	}
	if old > 1000/readsAfterStale+1 {
		t.Errorf("%d of 1000 reports used a stale state", old)
	}
	for range readsAfterStale {
		r.get("Cluster", "1")
	}
	if _, ok := r.get("Cluster", "1"); !ok {
		t.Error("the state is not tried again")
	}
}
