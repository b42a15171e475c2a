package clm

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The tests of this file and its neighbours send the requests of clients, sentinels and reporters
// of the original, and expect the original's answers. See docs/compatibility.md.

// A report without a time, or of the year 1, is one of now.
func TestForeignReportsWithoutTime(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	const conditions = `"conditions":[{"type":"Available","status":"True"},{"type":"Applied","status":"True"},` +
		`{"type":"Health","status":"True"}]`
	for adapter, observed := range map[string]string{"dns": "",
		"validation": `"observed_time":"0001-01-01T00:00:00Z",`} {
		before := time.Now()
		got := a.do("PUT", path+"/statuses", `{"adapter":"`+adapter+`","observed_generation":1,`+observed+conditions+
			`}`).want(201)
		at, err := time.Parse(time.RFC3339Nano, got.at("last_report_time"))
		if err != nil || at.Before(before.Truncate(time.Microsecond)) || at.After(time.Now()) {
			t.Errorf("%s is of %s, %v", adapter, got.at("last_report_time"), err)
		}
	}
	is(t, "Reconciled", a.do("GET", path, "").condition("Reconciled"), "True@1 ReconciledAll")
}

// Data and metadata are objects, and the metadata's members have their types.
func TestForeignReportsOfWrongTypes(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc") + "/statuses"
	good := statusBody("dns", 1, time.Now(), "True")
	for _, c := range []struct{ more, wantText string }{
		{`"data":[1]`, "data must be an object"},
		{`"data":"x"`, "data must be an object"},
		{`"data":1`, "data must be an object"},
		{`"metadata":"x"`, "metadata must be an object"},
		{`"metadata":[]`, "metadata must be an object"},
		{`"metadata":{"attempt":"x"}`, "attempt"},
		{`"metadata":{"started_time":"yesterday"}`, "metadata"},
	} {
		got := a.do("PUT", path, strings.Replace(good, `"data":{"n":1}`, c.more, 1)).want(400, "VAL-000")
		if !strings.Contains(got.at("detail"), c.wantText) {
			t.Errorf("%s: %s", c.more, got.body)
		}
	}
	for _, more := range []string{`"data":null`, `"data":{}`, `"metadata":null`,
		`"metadata":{"attempt":2,"job_name":"j","duration":"3s","started_time":"2026-01-01T00:00:00Z","own":1}`} {
		got := a.do("PUT", path, strings.Replace(statusBody("dns", 1, time.Now(), "True"), `"data":{"n":1}`, more,
			1)).want(201)
		is(t, "the data that are shown for "+more, got.at("data"), "{}")
	}
	got := a.do("GET", path, "").want(200)
	is(t, "the listed data", got.at("items.0.data"), "{}")
	is(t, "the metadata", got.at("items.0.metadata.attempt"), "2")
	for _, member := range []string{"reason", "message"} { // absent when the reporter gave none
		if strings.Contains(string(got.body), `"`+member+`"`) {
			t.Errorf("%s shows in %s", member, got.body)
		}
	}
}

// The messages by which clients distinguish the mistakes of a report.
func TestForeignReportMessages(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc") + "/statuses"
	good := statusBody("dns", 1, time.Now(), "True")
	for wantText, body := range map[string]string{
		"missing mandatory condition 'Health'": strings.Replace(good, "Health", "Other", 1),
		"duplicate condition type":             strings.Replace(good, "Applied", "Available", 1),
		"adapter is required":                  strings.Replace(good, `"dns"`, `""`, 1),
		"observed_generation must be":          strings.Replace(good, `generation":1`, `generation":0`, 1),
	} {
		if got := a.do("PUT", path, body).want(400, "VAL-000"); !strings.Contains(got.at("detail"), wantText) {
			t.Errorf("want %q in %s", wantText, got.body)
		}
	}
}

// Only the first of equal reports with Available=Unknown is stored.
func TestForeignUnknownReportAgain(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	report := statusBody("dns", 1, time.Now(), "Unknown")
	a.do("PUT", path+"/statuses", report).want(201)
	a.do("PUT", path+"/statuses", report).want(204)
	is(t, "reports", a.do("GET", path+"/statuses", "").at("total"), "1")
}

// CLM keeps the first of two different reports with one time and answers the second with it, unless
// the reporter requests the second.
func TestForeignReportsOfEqualTime(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	at := time.Now().Truncate(time.Second)
	first := a.do("PUT", path+"/statuses", statusBody("dns", 1, at, "True")).want(201)
	second := a.do("PUT", path+"/statuses", statusBody("dns", 1, at, "False")).want(201)
	is(t, "the second answer", string(second.body), string(first.body))
	is(t, "what counts", a.do("GET", path, "").condition("DnsSuccessful"), "True@1 ")
	a.do("PUT", path+"/statuses", statusBody("dns", 1, at, "False"), "X-Atoll-Equal-Time: maybe").want(400, "VAL-005")
	a.do("PUT", path+"/statuses", statusBody("dns", 1, at, "False"), "X-Atoll-Equal-Time: replace").want(201)
	is(t, "what counts then", a.do("GET", path, "").condition("DnsSuccessful"), "False@1 ")
}

// A kind that requires no adapters has conditions from its first report on.
func TestForeignReportOnAKindWithoutAdapters(t *testing.T) {
	a := start(t)
	path := "/channels/" + a.do("POST", "/channels", `{"kind":"Channel","name":"stable","spec":{}}`).want(201).at("id")
	is(t, "at first", a.do("GET", path, "").at("status.conditions"), "[]")
	a.do("PUT", path+"/statuses", statusBody("somebody", 1, time.Now(), "Unknown")).want(201)
	is(t, "after one that does not know", a.do("GET", path, "").at("status.conditions"), "[]")
	a.do("PUT", path+"/statuses", statusBody("somebody", 1, time.Now(), "Unknown")).want(204)
	a.do("PUT", path+"/statuses", statusBody("somebody", 1, time.Now(), "True")).want(201)
	got := a.do("GET", path, "").want(200)
	is(t, "Reconciled", got.condition("Reconciled"), "False@1 ReconciledMissingAdapters")
	is(t, "LastKnownReconciled", got.condition("LastKnownReconciled"), "False@1 AdaptersMissingReports")
	is(t, "after a change", a.do("PATCH", path, `{"labels":{"a":"b"}}`).want(200).condition("Reconciled"),
		"False@2 ReconciledMissingAdapters")
	if got := a.do("GET", path, ""); strings.Contains(fmt.Sprint(got.at("status")), "awaiting") {
		t.Errorf("somebody is awaited: %s", got.body)
	}
	a.do("DELETE", path, "").want(202)
	a.do("GET", path, "").want(404)
}
