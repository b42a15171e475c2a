package clm

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"atoll.dev/cluster"
)

// statusBody is a report with all that it needs.
func statusBody(adapter cluster.Adapter, generation int, at time.Time, available string) string {
	return fmt.Sprintf(`{"adapter":%q,"observed_generation":%d,"observed_time":%q,"data":{"n":1},
		"conditions":[{"type":"Available","status":%q},{"type":"Applied","status":"True"},{"type":"Health","status":"True"}]}`,
		adapter, generation, at.UTC().Format(time.RFC3339Nano), available)
}

// CLM checks a report in the contract's order.
func TestReportsAreCheckedInOrder(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	now := time.Now()
	good := statusBody("dns", 1, now, "True")
	for _, c := range []struct {
		name, path, body string
		status           int
		code             string
	}{
		{"what is malformed, before what is not there", "/clusters/nope", `{"adapter":""}`, 400, "VAL-000"},
		{"no generation", path, strings.Replace(good, `generation":1`, `generation":0`, 1), 400, "VAL-000"},
		{"a condition twice", path, strings.Replace(good, "Applied", "Available", 1), 400, "VAL-000"},
		{"a condition without type", path, strings.Replace(good, "Applied", "", 1), 400, "VAL-000"},
		{"a status of another word", path, statusBody("dns", 1, now, "Perhaps"), 400, "VAL-000"},
		{"of the future", path, statusBody("dns", 1, now.Add(6*time.Minute), "True"), 400, "VAL-000"},
		{"of the past", path, statusBody("dns", 1, now.Add(-31*time.Minute), "True"), 400, "VAL-000"},
		{"of nobody", "/clusters/nope", good, 404, "NTF-001"},
		{"ahead, before what is missing", path, `{"adapter":"dns","observed_generation":2,"observed_time":"` +
			now.UTC().Format(time.RFC3339) + `","conditions":[]}`, 204, ""},
		{"one is missing", path, strings.Replace(good, "Health", "Other", 1), 400, "VAL-000"},
		{"the first Unknown", path, statusBody("dns", 1, now, "Unknown"), 201, ""},
		{"the same", path, statusBody("dns", 1, now, "Unknown"), 204, ""},
		{"another Unknown", path, statusBody("dns", 1, now.Add(time.Second), "Unknown"), 204, ""},
		{"then True", path, statusBody("dns", 1, now.Add(time.Second), "True"), 201, ""},
		{"an earlier one", path, good, 204, ""},
		{"of the same moment", path, statusBody("dns", 1, now.Add(time.Second), "False"), 201, ""},
		{"of who is not required", path, statusBody("other", 1, now, "True"), 201, ""},
	} {
		res := a.do("PUT", c.path+"/statuses", c.body)
		if c.code == "" && res.status == c.status {
			continue
		}
		t.Log(c.name)
		res.want(c.status, c.code)
	}
	list := a.do("GET", path+"/statuses", "").want(200)
	is(t, "what is listed", list.at("total")+list.at("items.0.adapter")+list.at("items.0.conditions.0.status")+list.at(
		"items.1.adapter"), "2dnsTrueother")
	is(t, "page 2", a.do("GET", path+"/statuses?page=2&size=1", "").at("items.0.adapter"), "other")
}

// A report with the same content and a later time moves its time, and wakes no follower (I3).
func TestI3ALaterEqualReportSendsNoEvent(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	at := time.Now().Add(-time.Minute).Truncate(time.Microsecond)
	a.do("PUT", path+"/statuses", statusBody("dns", 1, at, "True")).want(201)
	a.do("PUT", path+"/statuses", statusBody("validation", 1, at, "True")).want(201)
	before := a.do("GET", path, "").want(200)
	history := string(a.do("GET", path+"/history", "").body)
	w := a.watch(t, "/clusters?watch=true")
	w.want("ADDED abc", "BOOKMARK")
	var last string
	for i := 1; i <= 5; i++ {
		for _, adapter := range []cluster.Adapter{"dns", "validation"} {
			res := a.do("PUT", path+"/statuses", statusBody(adapter, 1, at.Add(time.Duration(i)*time.Second),
				"True")).want(201)
			last = res.at("last_report_time")
		}
	}
	after := a.do("GET", path, "").want(200)
	is(t, "the version", version(after), version(before))
	if after.header.Get("Etag") == before.header.Get("Etag") {
		t.Error("the ETag stays while the times of reports move")
	}
	a.do("PATCH", path, `{"labels":{}}`, "If-Match: "+before.header.Get("Etag")).want(200) // it goes by the version
	is(t, "the history", string(a.do("GET", path+"/history", "").body), history)
	if after.at("status.conditions.0.last_updated_time") != last ||
		before.at("status.conditions.0.last_updated_time") == last {
		t.Errorf("Reconciled was updated at %s, the last report is of %s",
			after.at("status.conditions.0.last_updated_time"), last)
	}
	is(t, "the report's time", a.do("GET", path+"/statuses", "").at("items.1.last_report_time"), last)
	is(t, "the transition", after.at("status.conditions.0.last_transition_time"),
		before.at("status.conditions.0.last_transition_time"))
	// The watch's next event is not one of these changes.
	a.do("PUT", path+"/statuses", statusBody("dns", 1, at.Add(10*time.Second), "False")).want(201)
	if e := w.next(); e.Type == "BOOKMARK" {
		w.want("MODIFIED abc")
	} else if e.Type != "MODIFIED" {
		t.Fatalf("%+v", e)
	}
	is(t, "versions", version(a.do("GET", path, "")), "4")
}

// A status lists the adapters that a resource waits for, with the time since when.
func TestStatusListsAwaitedAdapters(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	awaiting := func() string {
		t.Helper()
		var r struct {
			UpdatedTime time.Time `json:"updated_time"`
			Status      struct {
				Awaiting []struct {
					Adapter, Reported string
					Since             time.Time
				}
			}
		}
		if err := json.Unmarshal(a.do("GET", path, "").want(200).body, &r); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, w := range r.Status.Awaiting {
			since := "later"
			if w.Since.Equal(r.UpdatedTime) {
				since = "from the start"
			} else if w.Since.Before(r.UpdatedTime) {
				since = "before"
			}
			all = append(all, strings.TrimSpace(w.Adapter+" "+since+" "+w.Reported))
		}
		return strings.Join(all, ", ")
	}
	is(t, "at first", awaiting(), "dns from the start, validation from the start")
	a.report(path, "dns", 1, "True", "").want(201)
	is(t, "then", awaiting(), "validation from the start")
	a.report(path, "validation", 1, "False", "").want(201)
	is(t, "then", awaiting(), "validation later False")
	a.report(path, "validation", 1, "True", "").want(201)
	is(t, "then", awaiting(), "")
	a.do("PATCH", path, `{"labels":{"a":"b"}}`).want(200)
	is(t, "of a new generation", awaiting(), "dns from the start, validation from the start")
	a.do("DELETE", path, "").want(202)
	a.report(path, "dns", 3, "False", "True").want(201)
	a.report(path, "validation", 3, "False", "False").want(201)
	is(t, "while deleting", awaiting(), "validation later False")
}

// Reports of an adapter with a wrong clock count again once the clock is right.
func TestAReportFromTheFutureBlocksNothing(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	future := statusBody("dns", 1, time.Now().Add(4*time.Minute), "False")
	first := a.do("PUT", path+"/statuses", future).want(201)
	a.do("PUT", path+"/statuses", statusBody("dns", 1, time.Now(), "True")).want(201)
	is(t, "what counts", a.do("GET", path, "").condition("DnsSuccessful"), "True@1 ")
	if first.at("received_time") == "" {
		t.Errorf("%s", first.body)
	}
}

// A repeated report gets its first answer, also after a later report or another one with the same
// time.
func TestARepeatedReportGetsTheFirstAnswer(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc") + "/statuses"
	at := time.Now().Add(-time.Minute).Truncate(time.Microsecond)
	reports := []string{
		statusBody("dns", 1, at, "True"), statusBody("dns", 1, at, "False"), statusBody("dns", 1, at.Add(time.Second),
			"False"), statusBody("dns", 1, at.Add(2*time.Second), "True"),
	}
	var answers []string
	const replace = "X-Atoll-Equal-Time: replace"
	for _, r := range reports {
		answers = append(answers, string(a.do("PUT", path, r, replace).want(201).body))
	}
	for i, r := range reports {
		is(t, fmt.Sprintf("the answer to report %d again", i), string(a.do("PUT", path, r, replace).want(201).body),
			answers[i])
	}
	list := a.do("GET", path, "").want(200)
	is(t, "what counts", list.at("items.0.conditions.0.status")+list.at("items.0.last_report_time"),
		"True"+at.Add(2*time.Second).UTC().Format(time.RFC3339Nano))
	if list.at("items.0.recent") != "" || strings.Contains(answers[0], "recent") {
		t.Errorf("the answer has remembered reports: %s", list.body)
	}
	if history := a.do("GET", strings.TrimSuffix(path, "/statuses")+"/history", "").want(200); history.at(
		"items.0.status.reports.0.adapter") != "dns" || strings.Contains(string(history.body), `"recent"`) {
		t.Errorf("the history has remembered reports: %s", history.body)
	}
	for range 2 {
		a.do("PUT", path, statusBody("dns", 1, at.Add(time.Millisecond), "True")).want(204) // older than what is known
	}
}

func TestStatusesAreWatched(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	a.report("/clusters/"+a.cluster("other"), "dns", 1, "True", "").want(201)
	at := time.Now().Add(-time.Minute)
	put := func(adapter cluster.Adapter, after time.Duration, available string) {
		t.Helper()
		a.do("PUT", path+"/statuses", statusBody(adapter, 1, at.Add(after), available)).want(201)
	}
	put("dns", 0, "False")
	w := a.watch(t, path+"/statuses?watch=true")
	next := func(w *watched) string {
		t.Helper()
		e := w.next()
		return strings.TrimSpace(e.Type + " " + e.Object.Adapter)
	}
	is(t, "what is there", next(w), "ADDED dns")
	caught := w.next()
	is(t, "then", caught.Type, "BOOKMARK")
	put("validation", 0, "True")
	is(t, "another adapter's", next(w), "ADDED validation")
	put("dns", time.Second, "False") // the same content, later
	a.do("PATCH", path, `{"labels":{"a":"b"}}`).want(200)
	put("dns", 2*time.Second, "True")
	is(t, "a change", next(w), "MODIFIED dns")
	// A continued watch sends all reports with the first change.
	again := a.watch(t, path+"/statuses?watch=true&cursor="+url.QueryEscape(caught.Cursor))
	is(t, "continued", next(again), "ADDED dns")
	is(t, "continued", next(again), "ADDED validation")
	a.do("DELETE", path, "").want(202)
	a.report(path, "dns", 3, "False", "True").want(201)
	is(t, "the last report", next(w), "MODIFIED dns")
	a.report(path, "validation", 3, "False", "True").want(201)
	is(t, "at the end", next(w), "DELETED dns")
	is(t, "at the end", next(w), "DELETED validation")
	a.do("GET", path+"/statuses?watch=perhaps", "").want(400)
	a.do("GET", path+"/statuses?watch=true", "").want(404)
}

// Every write may insist on a version, reports and force-deletion, too (I2).
func TestI2IfMatchOnReportsAndForceDeletion(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	tag := func() string { return "If-Match: " + a.do("GET", path, "").want(200).header.Get("Etag") }
	first, at := tag(), time.Now().Add(-time.Minute)
	put := func(after time.Duration, available, header string) answer {
		t.Helper()
		return a.do("PUT", path+"/statuses", statusBody("dns", 1, at.Add(after), available), header)
	}
	put(0, "True", first).want(201)
	put(time.Second, "False", first).want(412, "CNF-002")
	is(t, "what counts", a.do("GET", path, "").condition("DnsSuccessful"), "True@1 ")
	put(time.Second, "False", `If-Match: "0"`).want(412, "CNF-002")
	put(time.Second, "False", tag()).want(201)
	put(2*time.Second, "True", "If-Match: *").want(201)
	last := tag()
	a.do("DELETE", path, "").want(202)
	a.report(path, "validation", 2, "True", "False").want(201)
	put(3*time.Second, "True", last).want(412, "CNF-002")
	a.do("POST", path+"/force-delete", `{"reason":"gone"}`, last).want(412, "CNF-002")
	a.do("POST", path+"/force-delete", `{"reason":"gone"}`, tag()).want(204)
}
