package clm

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// endedCluster is a cluster that went with its last node pool. The result has the paths of both.
func endedCluster(a *testAPI) (cluster, pool string) {
	a.t.Helper()
	cluster = "/clusters/" + a.cluster("abc")
	pool = "/nodepools/" + a.do("POST", cluster+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201).at("id")
	a.do("DELETE", cluster, "").want(202)
	a.report(cluster, "dns", 2, "False", "True").want(201)
	a.report(cluster, "validation", 2, "False", "True").want(201)
	is(a.t, "while a child is left", a.do("GET", cluster, "").want(200).condition("Reconciled"),
		"False@2 ReconciledWaitingForChildren")
	a.report(pool, "node-pool", 2, "False", "True").want(201)
	a.do("GET", pool, "").want(404, "NTF-001")
	a.do("GET", cluster, "").want(404, "NTF-001")
	return cluster, pool
}

// A parent is removed with its last child. The original keeps it until its own next report, which
// it answers with 201. CLM answers such a report with 201, too, and the parent stays removed.
func TestForeignReportAfterTheLastChild(t *testing.T) {
	dsn := pgtest.DSN(t)
	a := startOn(t, dsn)
	cluster, pool := endedCluster(a)
	events := a.do("GET", "/clusters/history", "").want(200).at("items.0.seq")

	got := a.report(cluster, "dns", 2, "False", "True").want(201)
	is(t, "the answer's adapter", got.at("adapter"), "dns")
	is(t, "the answer's generation", got.at("observed_generation"), "2")
	a.report(cluster, "other", 2, "False", "False").want(201)
	a.report(cluster, "dns", 3, "False", "True").want(204)
	a.do("PUT", cluster+"/statuses",
		strings.Replace(statusBody("dns", 2, time.Now(), "True"), "Health", "Other", 1)).want(400, "VAL-000")

	a.do("GET", cluster, "").want(404, "NTF-001")
	a.do("GET", cluster+"/statuses", "").want(404, "NTF-001")
	a.do("PATCH", cluster, `{"spec":{}}`).want(404, "NTF-001")
	a.do("DELETE", cluster, "").want(404, "NTF-001")
	is(t, "the listed clusters", a.do("GET", "/clusters", "").want(200).at("total"), "0")
	is(t, "the last record", a.do("GET", "/clusters/history", "").want(200).at("items.0.seq"), events)

	// The original has removed these rows, or never had them.
	a.report(pool, "node-pool", 2, "False", "True").want(404, "NTF-001")
	a.report("/clusters/"+strings.Repeat("0", 8)+"-0000-7000-8000-"+strings.Repeat("0", 12), "dns", 1, "True", "").want(404, "NTF-001")

	// A report that is older than any that the server takes finds nothing.
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(),
		`update document set updated_at = updated_at - interval '31 minutes' where removed_at is not null`); err != nil {
		t.Fatal(err)
	}
	a.report(cluster, "dns", 2, "False", "True").want(404, "NTF-001")
}

// A cluster that its own last report removed is 404 at once, in the original, too.
func TestForeignReportAfterTheOwnEnd(t *testing.T) {
	a := start(t)
	cluster := "/clusters/" + a.cluster("abc")
	a.do("DELETE", cluster, "").want(202)
	a.report(cluster, "dns", 2, "False", "True").want(201)
	a.report(cluster, "validation", 2, "False", "True").want(201)
	a.report(cluster, "dns", 2, "False", "True").want(404, "NTF-001")
}

// A second DELETE moves updated_time, of the children, too, and nothing else: no version, no record, and
// no watch event (I3).
func TestForeignRepeatedDeletion(t *testing.T) {
	a := start(t)
	cluster := "/clusters/" + a.cluster("abc")
	pool := "/nodepools/" + a.do("POST", cluster+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201).at("id")
	a.do("DELETE", cluster, "").want(202)
	cursor := a.do("GET", "/clusters", "").want(200).at("cursor")
	before, poolBefore := a.do("GET", cluster, "").want(200), a.do("GET", pool, "").want(200)
	last := a.do("GET", "/clusters/history", "").want(200).at("items.0.seq")

	again := a.do("DELETE", cluster, "").want(202)
	after, poolAfter := a.do("GET", cluster, "").want(200), a.do("GET", pool, "").want(200)
	is(t, "the answer", string(again.body), string(after.body))
	for _, c := range []struct {
		what          string
		before, after answer
	}{{"the cluster", before, after}, {"its node pool", poolBefore, poolAfter}} {
		if b, a := c.before.at("updated_time"), c.after.at("updated_time"); a <= b {
			t.Errorf("%s was updated at %s and then at %s", c.what, b, a)
		}
		// No adapter has reported on this generation: its condition has the time of the request.
		is(t, c.what+"'s condition", c.after.at("status.conditions.0.last_updated_time"), c.after.at("updated_time"))
		for _, member := range []string{"generation", "deleted_time", "deleted_by", "updated_by",
			"status.conditions.0.last_transition_time"} {
			is(t, c.what+"'s "+member, c.after.at(member), c.before.at(member))
		}
		is(t, c.what+"'s version", version(c.after), version(c.before))
	}
	is(t, "the last record", a.do("GET", "/clusters/history", "").want(200).at("items.0.seq"), last)
	search := "/clusters?search=" + "updated_time+%3E+%27" + before.at("updated_time") + "%27"
	is(t, "found by the new time", a.do("GET", search, "").want(200).at("total"), "1")

	// A watch from before the second DELETE shows a later change first.
	next := a.cluster("next")
	events := a.watch(t, "/clusters?watch=true&cursor="+url.QueryEscape(cursor))
	is(t, "the first event", events.next().Object.ID, next)
}

// An answer shows the reason and the message of a report, also if they are empty, and leaves out
// absent ones. The adapter's condition of the resource has the same members as the report.
func TestForeignEmptyTexts(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	report := func(member string) string {
		return strings.Replace(statusBody("dns", 1, time.Now(), "True"),
			`"type":"Available"`, `"type":"Available"`+member, 1)
	}
	for _, c := range []struct{ member, shown, omitted string }{
		{`,"reason":"","message":""`, `"reason":"","message":""`, ""},
		{`,"reason":""`, `"reason":""`, `"message":`},
		{`,"message":"m"`, `"message":"m"`, `"reason":`},
		{`,"reason":null,"message":null`, "", `"message":`},
		{``, "", `"reason":`},
	} {
		got := string(a.do("PUT", path+"/statuses", report(c.member)).want(201).body)
		listed := a.do("GET", path+"/statuses", "").want(200).at("items.0.conditions")
		condition := a.do("GET", path, "").want(200).at("status.conditions.2")
		for what, text := range map[string]string{"the answer": got, "the list": listed, "the condition": condition} {
			if c.shown != "" && !containsMembers(text, c.shown) {
				t.Errorf("a report with %s: %s lacks %s: %s", c.member, what, c.shown, text)
			}
			if c.omitted != "" && strings.Contains(text, c.omitted) {
				t.Errorf("a report with %s: %s shows %s: %s", c.member, what, c.omitted, text)
			}
		}
	}
}

// containsMembers reports whether a text has each of the members.
func containsMembers(text, members string) bool {
	for member := range strings.SplitSeq(members, ",") {
		if !strings.Contains(text, member) {
			return false
		}
	}
	return true
}

// A condition that an expression makes has a reason and a message, also when they are empty.
func TestMappedConditionsShowEmptyTexts(t *testing.T) {
	a, _ := startAs(t, pgtest.DSN(t), `
entities:
- kind: Cluster
  plural: clusters
  required_adapters: [dns]
  conditions:
  - {type: Placed, when: {expression: "true"}, output: {status: {expression: "'True'"}, reason: {expression: "''"},
     message: {expression: "''"}}}
`, func(*Options) {})
	got := a.do("POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{}}`).want(201)
	is(t, "the condition", got.at("status.conditions.2.type"), "Placed")
	if text := got.at("status.conditions.2"); !containsMembers(text, `"reason":"","message":""`) {
		t.Errorf("an empty text is left out: %s", text)
	}
}
