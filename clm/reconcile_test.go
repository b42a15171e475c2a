package clm

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/store"
)

// requests are the feed's documents of the kind Request.
func (a *testAPI) requests() (all []api.ReconcileRequest) {
	a.t.Helper()
	page, err := a.server.store.List(a.t.Context(), store.Query{Kind: RequestKind})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, d := range page.Documents {
		var r api.ReconcileRequest
		if err := json.Unmarshal(d.Spec, &r); err != nil {
			a.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestReconcileRequestsAreStored(t *testing.T) {
	a := start(t)
	id := a.cluster("abc")
	pool := a.do("POST", "/clusters/"+id+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201).at("id")
	asked := a.do("POST", "/clusters/"+id+"/reconcile", `{"reason":"a look"}`).want(202)
	is(t, "what was asked", asked.at("kind")+" "+asked.at("id")+" "+asked.at("reason"), "Cluster "+id+" a look")
	for _, path := range []string{"/resources/" + pool, "/nodepools/" + pool, "/clusters/" + id + "/nodepools/" +
		pool} {
		is(t, "the id", a.do("POST", path+"/reconcile", "").want(202).at("id"), pool)
	}
	is(t, "all", string(a.do("POST", "/resources/reconcile", "").want(202).body[:18]), `{"requested_time":`)
	is(t, "all of a kind", a.do("POST", "/resources/reconcile", `{"kind":"NodePool","reason":"new adapter"}`).want(
		202).at("kind"), "NodePool")
	if got := a.requests(); len(got) != 6 {
		t.Fatalf("the feed has %+v", got)
	}
	h := a.do("GET", "/clusters/"+id+"/history", "").want(200)
	is(t, "what the history says", h.at("items.0.action")+" "+h.at("items.0.principal")+" "+h.at("items.0.note.reason"),
		"reconcile tester@example.com a look")
	is(t, "the resource", version(a.do("GET", "/clusters/"+id, "")), "1")

	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/clusters/nope/reconcile", "", 404, "NTF-001"},
		{"/clusters/" + id + "/reconcile", `{`, 400, "VAL-006"},
		{"/clusters/" + id + "/reconcile", `{"kind":"NodePool"}`, 400, "VAL-000"},
		{"/clusters/" + id + "/reconcile", `{"reason":"` + strings.Repeat("x", 1025) + `"}`, 400, "VAL-000"},
		{"/resources/reconcile", `{"kind":"Nope"}`, 400, "VAL-000"},
	} {
		a.do("POST", c.path, c.body).want(c.status, c.code)
	}
	tenant := *a
	tenant.caller.Tenancy = map[string]string{"org": "1"}
	tenant.do("POST", "/resources/reconcile", "").want(403, "AUZ-001")
	tenant.do("POST", "/clusters/"+id+"/reconcile", "").want(404, "NTF-001")
	is(t, "resources, of which requests are none", a.do("GET", "/resources", "").at("total"), "2")
}

// Housekeeping removes expired records and nothing else.
func TestHousekeepingRemovesExpiredRecords(t *testing.T) {
	a := start(t)
	const body = `{"kind":"Cluster","name":"abc","spec":{}}`
	made := a.do("POST", "/clusters", body, "Idempotency-Key: k").want(201)
	a.do("POST", "/resources/reconcile", "").want(202)
	if err := a.server.tidy(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	is(t, "the same key's answer", a.do("POST", "/clusters", body, "Idempotency-Key: k").want(201).at("id"),
		made.at("id"))
	if len(a.requests()) != 1 {
		t.Fatal("tidy deleted a new request")
	}
	if err := a.server.tidy(t.Context(), time.Now().Add(25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	a.do("POST", "/clusters", body, "Idempotency-Key: k").want(409, "CNF-001")
	if len(a.requests()) != 0 {
		t.Fatal("an old request is still there")
	}
	a.do("GET", "/clusters/"+made.at("id"), "").want(200)
}

// Records that are too old go, and nothing else.
func TestHistoryIsTrimmed(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	a.do("PATCH", path, `{"labels":{"a":"b"}}`).want(200)
	age := func(action string) {
		t.Helper()
		if err := a.server.store.Tx(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(t.Context(), `update history set at = at - interval '91 days' where action = $1`, action)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	is(t, "before", a.do("GET", path+"/history", "").at("items.1.action"), "create")
	age("create") // from now on the server itself may trim
	if err := a.server.tidy(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	after := a.do("GET", path+"/history", "").want(200)
	is(t, "after", after.at("items.0.action")+after.at("items.1.action"), "update")
	// A resource without recent changes remains.
	age("update")
	if err := a.server.tidy(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	is(t, "of what did not change", a.do("GET", path+"/history", "").want(200).at("items"), "[]")
	a.do("GET", "/clusters/0190a000-0000-7000-8000-000000000000/history", "").want(404, "NTF-001")
}

// The history of a kind, and of all.
func TestHistoryOfAKindIsListed(t *testing.T) {
	a := start(t)
	one, two := a.cluster("one"), a.cluster("two")
	a.do("POST", "/channels", `{"kind":"Channel","name":"stable","spec":{}}`).want(201)
	a.do("PATCH", "/clusters/"+one, `{"labels":{"a":"b"}}`).want(200)
	list := a.do("GET", "/clusters/history", "").want(200)
	is(t, "who", list.at("items.0.id")+list.at("items.1.id")+list.at("items.2.id")+list.at("items.3.id"), one+two+one)
	is(t, "what", list.at("items.0.action")+" "+list.at("items.0.kind"), "update Cluster")
	older := a.do("GET", "/clusters/history?size=1&before="+list.at("items.1.seq"), "").want(200)
	is(t, "the one before", older.at("items.0.id")+older.at("items.1.id"), one)
	is(t, "of all kinds", a.do("GET", "/resources/history", "").want(200).at("items.1.kind"), "Channel")
	a.do("GET", "/clusters/history?before=x", "").want(400)
	tenant := *a
	tenant.caller.Tenancy = map[string]string{"org": "1"}
	tenant.do("GET", "/clusters/history", "").want(403, "AUZ-001")
}
