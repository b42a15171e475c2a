package clm

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

func TestCreateGetAndList(t *testing.T) {
	a := start(t)
	made := a.do("POST", "/clusters",
		`{"kind":"Cluster","name":"my-c","spec":{"region":"eu"},"labels":{"env":"x"},"unknown":1}`).want(201)
	id := made.at("id")
	for path, want := range map[string]string{
		"kind": "Cluster", "name": "my-c", "href": basePath + "/clusters/" + id, "generation": "1", "labels.env": "x",
		"spec.region": "eu",
		"created_by":  "tester@example.com", "updated_by": "tester@example.com", "tenancy": "{}",
		"owner_references": "", "deleted_time": "",
	} {
		is(t, path, made.at(path), want)
	}
	if id[14] != '7' || made.at("created_time") != made.at("updated_time") {
		t.Errorf("id %s, created %s, updated %s", id, made.at("created_time"), made.at("updated_time"))
	}
	is(t, "Reconciled", made.condition("Reconciled"), "False@1 ReconciledMissingAdapters")
	got := a.do("GET", "/clusters/"+id, "").want(200)
	is(t, "what GET returns", string(got.body), string(made.body))
	is(t, "its version", version(got), "1")
	a.do("GET", "/clusters/"+id, "", "If-None-Match: "+got.header.Get("Etag")).want(304)
	is(t, "the same among all kinds", string(a.do("GET", "/resources/"+id, "").want(200).body), string(made.body))

	pool := a.do("POST", "/clusters/"+id+"/nodepools", `{"kind":"NodePool","name":"pool","spec":{}}`).want(201)
	is(t, "its owner", pool.at("owner_references.href"), basePath+"/clusters/"+id)
	is(t, "its href", pool.at("href"), basePath+"/clusters/"+id+"/nodepools/"+pool.at("id"))
	a.do("GET", "/clusters/"+id+"/nodepools/"+pool.at("id"), "").want(200)
	a.do("GET", "/nodepools/"+pool.at("id"), "").want(200)
	other := a.cluster("other")
	a.do("GET", "/clusters/"+other+"/nodepools/"+pool.at("id"), "").want(404, "NTF-001")
	is(t, "pools of another cluster", a.do("GET", "/clusters/"+other+"/nodepools", "").want(200).at("items"), "[]")
	is(t, "its pools", a.do("GET", "/clusters/"+id+"/nodepools", "").want(200).at("items.0.name"), "pool")
	// same name, another owner
	a.do("POST", "/clusters/"+other+"/nodepools", `{"kind":"NodePool","name":"pool","spec":{}}`).want(201)

	list := a.do("GET", "/clusters?size=1", "").want(200)
	is(t, "the first page", list.at("items.0.name")+list.at("page")+list.at("size")+list.at("total"), "other112")
	next := a.do("GET", "/clusters?size=1&continue="+list.at("continue"), "").want(200)
	is(t, "the next page", next.at("items.0.name")+next.at("continue"), "my-c")
	is(t, "page 2", a.do("GET", "/clusters?size=1&page=2&order=name%20desc", "").want(200).at("items.0.name"), "my-c")
	is(t, "fields", string(a.do("GET", "/clusters/"+id+"?fields=name,spec.*", "").want(200).body),
		`{"id":"`+id+`","name":"my-c","spec":{"region":"eu"}}`)
	is(t, "all kinds", a.do("GET", "/resources", "").want(200).at("total"), "4")
	is(t, "one kind of all", a.do("GET", "/resources?kind=NodePool", "").want(200).at("total"), "2")
	made = a.do("POST", "/resources", `{"kind":"WifConfig","name":"w","spec":{}}`).want(201)
	is(t, "conditions of what nobody reports on", made.at("status.conditions"), "[]")
}

// A long value that is wrong is not sent back.
func TestWrongValuesAreNotRepeated(t *testing.T) {
	a := start(t)
	long := strings.Repeat("x", 100_000)
	for _, spec := range []string{`{"region":"` + long + `"}`, `{"region":{"a":"` + long + `"},"nodes":"` + long +
		`"}`} {
		if got := a.do("POST", "/clusters", `{"kind":"Cluster","name":"long","spec":`+spec+`}`).want(
			400, "VAL-000"); len(got.body) > 4000 {
			t.Errorf("the answer has %d bytes", len(got.body))
		}
	}
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	a := start(t)
	id := a.cluster("taken")
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
		wantText           string
	}{
		{"POST", "/clusters", `{"kind":"Cluster","name":"taken","spec":{}}`, 409, "CNF-001", "taken"},
		{"POST", "/clusters", `{`, 400, "VAL-006", ""},
		{"POST", "/clusters", ``, 400, "VAL-006", ""},
		{"POST", "/clusters", `{"name":"abc","spec":{}}`, 400, "VAL-000", "kind"},
		{"POST", "/clusters", `{"kind":"NodePool","name":"abc","spec":{}}`, 400, "VAL-000", "must be 'Cluster'"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"ab","spec":{}}`, 400, "VAL-000", "3 to 53"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"Abc","spec":{}}`, 400, "VAL-000", "lower case"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc"}`, 400, "VAL-000", "spec"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":[]}`, 400, "VAL-000", "object"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{"region":"mars","nodes":-1}}`, 400, "VAL-000",
			"spec.nodes"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{},"labels":{"a b":"x"}}`, 400, "VAL-000",
			"label key"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{},"labels":{"a":"x y"}}`, 400, "VAL-000",
			"labels.a"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{},"references":{"nope":[{"id":"1"}]}}`, 400,
			"VAL-000", "references.nope"},
		{"POST", "/clusters",
			`{"kind":"Cluster","name":"abc","spec":{},"references":{"wif_config":[{"id":"1","kind":"WifConfig"}]}}`,
			400, "VAL-000", "no WifConfig"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{"a":"\u0000"}}`, 400, "VAL-006", "u0000"},
		{"POST", "/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`, 422, "VAL-000", "/clusters/{id}/nodepools"},
		{"POST", "/resources", `{"kind":"NodePool","name":"p","spec":{}}`, 422, "VAL-000", ""},
		{"POST", "/resources", `{"kind":"Nope","name":"p","spec":{}}`, 400, "VAL-000", "Nope"},
		{"POST", "/clusters/nope/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`, 404, "NTF-001", ""},
		{"GET", "/clusters/nope/nodepools", "", 404, "NTF-001", ""},
		{"GET", "/clusters/nope", "", 404, "NTF-001", "nope"},
		{"GET", "/nodepools/nope", "", 404, "NTF-001", ""},
		{"GET", "/channels/nope", "", 404, "NTF-001", ""},
		{"GET", "/resources/nope", "", 404, "NTF-001", ""},
		{"GET", "/nopes", "", 404, "NTF-000", ""},
		{"PUT", "/clusters", "{}", 405, "", ""},
		{"GET", "/clusters?page=0", "", 400, "VAL-000", "page"},
		{"GET", "/clusters?size=101", "", 400, "VAL-000", "size"},
		{"GET", "/clusters?order=labels", "", 400, "VAL-005", "labels"},
		{"GET", "/clusters?order=name;drop", "", 400, "VAL-005", ""},
		{"GET", "/clusters?fields=nope", "", 400, "VAL-000", "nope"},
		{"GET", "/clusters?ref_type=wif_config", "", 400, "VAL-000", "together"},
		{"GET", "/clusters?continue=x", "", 400, "VAL-005", ""},
		{"PATCH", "/clusters/" + id, `{}`, 400, "VAL-005", "at least one"},
		{"PATCH", "/clusters/" + id, `{"name":"x"}`, 400, "VAL-006", "name"},
		{"PATCH", "/clusters/" + id, `{"spec":{"nodes":-1}}`, 400, "VAL-000", "spec.nodes"},
		{"PATCH", "/clusters/" + id, `{"spec":null}`, 400, "VAL-000", "object"},
		{"POST", "/clusters/" + id + "/force-delete", `{"reason":"x"}`, 409, "CNF-003", "delete it first"},
		{"POST", "/clusters/" + id + "/force-delete", `{}`, 400, "VAL-000", "reason"},
		{"PUT", "/clusters/" + id + "/statuses", `{"adapter":"dns"}`, 400, "VAL-000", "observed_generation"},
	} {
		res := a.do(c.method, c.path, c.body)
		if c.code == "" {
			if res.status != c.status {
				t.Errorf("%s %s: %d %s", c.method, c.path, res.status, res.body)
			}
			continue
		}
		res.want(c.status, c.code)
		if !strings.Contains(res.at("detail"), c.wantText) {
			t.Errorf("%s %s %s: %s does not contain %q", c.method, c.path, c.body, res.body, c.wantText)
		}
	}
	bad := a.do("POST", "/clusters", `{"kind":"Cluster","name":"x","spec":{"region":"mars"}}`,
		"X-Request-Id: r-1").want(400)
	is(t, "what is wrong", bad.at("errors.0.field")+" "+bad.at("errors.1.field")+" "+bad.at("trace_id"),
		"spec.region name r-1")
}

func TestSearch(t *testing.T) {
	a := start(t)
	for i, body := range []string{
		`{"kind":"Cluster","name":"one","spec":{"nodes":3,"a":{"b":"x"}},"labels":{"env":"prod","tier":"1"}}`,
		`{"kind":"Cluster","name":"two","spec":{"nodes":10},"labels":{"env":"dev","app.io":"x"}}`,
		`{"kind":"Cluster","name":"six","spec":{"region":"eu"}}`,
	} {
		path := "/clusters/" + a.do("POST", "/clusters", body).want(201).at("id")
		if i == 0 {
			a.report(path, "dns", 1, "True", "").want(201)
			a.report(path, "validation", 1, "True", "").want(201)
			a.do("PATCH", path, `{"spec":{"nodes":4,"a":{"b":"x"}}}`).want(200)
		}
		if i == 2 {
			a.do("DELETE", path, "").want(202)
		}
	}
	for text, want := range map[string]string{
		"":                                "one two six",
		"name = 'two'":                    "two",
		"name in ('one', 'six')":          "one six",
		"name ilike 'T%' or name = 'six'": "two six",
		"generation > 1":                  "one six",
		"labels.env = 'prod'":             "one",
		"labels.env = 'prod' and labels.tier='2'": "",
		"spec.nodes > 3":                                                          "one two",
		"spec.a.b = 'x'":                                                          "one",
		"spec.region is null":                                                     "one two",
		"deleted_time is null":                                                    "one two",
		"deleted_time is not null":                                                "six",
		"created_time > '2020-01-01T00:00:00Z'":                                   "one two six",
		"updated_time < '2020-01-01T00:00:00Z'":                                   "",
		"status.conditions.Reconciled = 'False'":                                  "one two six",
		"status.conditions.LastKnownReconciled = 'True'":                          "one",
		"status.conditions.DnsSuccessful.observed_generation = 1":                 "one",
		"status.conditions.Reconciled.observed_generation >= 2":                   "one six",
		"status.conditions.Reconciled.last_updated_time > '2020-01-01T00:00:00Z'": "one two six",
		"status.conditions.Nope = 'True'":                                         "",
		"not (name = 'two')":                                                      "one six",
		"'True' = status.conditions.LastKnownReconciled or name = 'two'":          "one two",
		"status.conditions.Reconciled.observed_generation != 1":                   "one six",
		"labels.env in ['prod', 'test']":                                          "one",
		"labels.env is not null and labels.env like 'd%'":                         "two",
		"labels.app.io = 'x'":                                                     "two",
		"generation between 2 and 9":                                              "one six",
		"spec.nodes = 3.0 or spec.nodes in [10, 11]":                              "two",
		"name not in ('one') and name != 'six'":                                   "two",
	} {
		res := a.do("GET", "/clusters?order=created_time&search="+url.QueryEscape(text), "").want(200)
		var names []string
		for i := 0; res.at(fmt.Sprintf("items.%d.name", i)) != ""; i++ {
			names = append(names, res.at(fmt.Sprintf("items.%d.name", i)))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"nope = 1", "name =", "name = 'x", "status.x = 1", "status.conditions.A-B = 'True'",
		"status.conditions.A.nope = 1", strings.Repeat("(", 5000),
		"not labels.env = 'prod'", "not (name = 'x' and labels.env = 'prod')", "labels.env not in ('prod')",
		"status.conditions.a = 'True'",
		"status.conditions.Reconciled != 'True'", "not status.conditions.Reconciled = 'True'",
		"status.conditions.Reconciled in ('True')",
		"status.conditions.Reconciled like 'T%'", "status.conditions.Reconciled = 'Maybe'",
		"status.conditions.Reconciled.reason = 'x'",
		"status.conditions.Reconciled.observed_generation between 1 and 2",
		"status.conditions.Reconciled.last_updated_time = 'x'", "created_time > 'x'", "generation = 'x'",
		"name ~= 'x"} {
		a.do("GET", "/clusters?search="+url.QueryEscape(text), "").want(400, "VAL-005")
	}
}

func TestTenantsDoNotSeeEachOther(t *testing.T) {
	a := start(t)
	a.caller.Tenancy = map[string]string{"org": "1"}
	id := a.cluster("abc")
	a.do("GET", "/clusters/"+id, "").want(200)
	a.do("PUT", "/clusters/"+id+"/statuses", "{}").want(403, "AUZ-001")

	b := *a
	b.caller.Tenancy = map[string]string{"org": "2"}
	for method, path := range map[string]string{"GET": "", "PATCH": "", "DELETE": ""} {
		b.do(method, "/clusters/"+id+path, `{"labels":{"x":"y"}}`).want(404, "NTF-001")
	}
	for _, there := range []string{id, "nope"} { // an unknown resource has the same answer
		b.do("GET", "/resources/"+there, "").want(404, "NTF-001")
		b.do("PATCH", "/resources/"+there, `{"labels":{"x":"y"}}`).want(404, "NTF-001")
	}
	b.do("GET", "/clusters/"+id+"/history", "").want(404)
	b.do("GET", "/clusters/"+id+"/statuses", "").want(404)
	b.do("POST", "/clusters/"+id+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(404)
	is(t, "what the other tenant lists", b.do("GET", "/clusters", "").at("total")+b.do("GET", "/resources", "").at(
		"total"), "00")
	b.cluster("abc") // the same name
	const keyed = `{"kind":"Cluster","name":"keyed","spec":{}}`
	theirs := a.do("POST", "/clusters", keyed, "Idempotency-Key: k").want(201)
	if mine := b.do("POST", "/clusters", keyed, "Idempotency-Key: k").want(201); mine.at("id") == theirs.at("id") ||
		mine.at("tenancy.org") != "2" {
		t.Fatalf("a key, though of the same name, gives another tenant %s", mine.body)
	}

	system := *a
	system.caller = Caller{Name: "system:adapter", System: true}
	is(t, "what the system lists", system.do("GET", "/clusters", "").at("total"), "4")
	system.report("/clusters/"+id, "dns", 1, "True", "").want(201)
}

// A caller that is the system by header or claim may only read and report (I10).
func TestI10TheSystemOfAHeaderOnlyReports(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	const reporter = "X-Test-Reporter: yes"
	a.do("GET", path, "", reporter).want(200)
	a.do("PUT", path+"/statuses", statusBody("dns", 1, time.Now(), "True"), reporter).want(201)
	for _, c := range [][2]string{{"POST", "/clusters"}, {"PATCH", path}, {"DELETE", path},
		{"POST", path + "/force-delete"}, {"POST", path + "/reconcile"}} {
		a.do(c[0], c[1], `{"labels":{"a":"b"}}`, reporter).want(403, "AUZ-001")
	}
}

func TestHistoryRecordsActorAndAction(t *testing.T) {
	a := start(t)
	id := a.cluster("abc")
	a.caller.Name = "second@example.com"
	a.do("PATCH", "/clusters/"+id, `{"labels":{"a":"b"}}`, "X-Request-Id: r-2").want(200)
	a.report("/clusters/"+id, "dns", 2, "True", "").want(201)
	h := a.do("GET", "/clusters/"+id+"/history?size=2", "").want(200)
	is(t, "the last", h.at("items.0.action")+" "+h.at("items.0.spec"), "update ")
	is(t, "the one before", h.at("items.1.principal")+" "+h.at("items.1.request_id")+" "+h.at("items.1.generation")+" "+
		h.at("items.1.spec.labels.a"), "second@example.com r-2 2 b")
	first := a.do("GET", "/clusters/"+id+"/history?before="+h.at("items.1.seq"), "").want(200)
	is(t, "the first", first.at("items.0.action")+" "+first.at("items.0.principal"), "create tester@example.com")
}

// The routes are those of the OpenAPI document, and it is a valid one.
func TestRoutesAreDocumented(t *testing.T) {
	a := start(t)
	doc, err := openapi3.NewLoader().LoadFromData(a.do("GET", "/openapi", "").want(200).body)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context(), openapi3.DisableExamplesValidation()); err != nil {
		t.Fatal(err)
	}
	one, _ := a.server.document()
	if two, _ := a.server.document(); &one[0] != &two[0] {
		t.Error("the server renders the document for each request")
	}
	documented := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			documented[method+" "+path] = true
		}
	}
	registry, _ := ParseRegistry([]byte(testEntities))
	for _, route := range (&Server{registry: registry}).routes().mux.Routes() {
		if !documented[route] {
			t.Errorf("%s is not documented", route)
		}
		delete(documented, route)
	}
	for route := range documented {
		t.Errorf("%s is documented, and there is no such route", route)
	}
}

func TestDefaultEntitiesAreValid(t *testing.T) {
	if _, err := ParseRegistry(DefaultEntities); err != nil {
		t.Fatal(err)
	}
}

func TestRegistryRefuses(t *testing.T) {
	for doc, wantText := range map[string]string{
		`entities: [{kind: A, plural: as}, {kind: A, plural: bs}]`:                                       "twice",
		`entities: [{kind: A, plural: as}, {kind: B, plural: as}]`:                                       "A's, too",
		`entities: [{kind: A, plural: resources}]`:                                                       "all kinds",
		`entities: [{kind: Request, plural: rs}]`:                                                        "own",
		`entities: [{kind: a, plural: as}]`:                                                              "CamelCase",
		`entities: [{kind: A, plural: as, parent_kind: B}]`:                                              "not an entity",
		`entities: [{kind: A, plural: as, parent_kind: B}, {kind: B, plural: bs, parent_kind: A}]`:       "belongs to itself",
		`entities: [{kind: A, plural: as, references: [{ref_type: x, target_kind: B}]}]`:                 "not an entity",
		`entities: [{kind: A, plural: as, references: [{ref_type: x, target_kind: A, min: 2, max: 1}]}]`: "no number",
		`entities: [{kind: A, plural: as, references: [{ref_type: x, target_kind: A, min: 1}]}]`:         "needs itself",
		`entities: [{kind: A, plural: as, nope: 1}]`:                                                     "nope",
		`entities: [{kind: A, plural: as, require_spec_schema: true}]`:                                   "spec_schema_name",
		`entities: [{kind: A, plural: as, name_min_len: 5, name_max_len: 4}]`:                            "5 to 4",
		`entities: [{kind: A, plural: as, on_parent_delete: cascade}]`:                                   "parent_kind",
		`entities: [{kind: A, plural: as, required_adapters: [x, x]}]`:                                   "twice",
		`entities: [{kind: B, plural: bs}, {kind: A, plural: as, parent_kind: B, ` +
			`on_parent_delete: maybe}]`: "neither",
		`entities: [{kind: A, plural: as, references: [{ref_type: x, target_kind: A}, {ref_type: x, ` +
			`target_kind: A}]}]`: "twice",
	} {
		if _, err := ParseRegistry([]byte(doc)); err == nil || !strings.Contains(err.Error(), wantText) {
			t.Errorf("%s: %v, want an error that contains %q", doc, err, wantText)
		}
	}
}
