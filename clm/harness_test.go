package clm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/pause"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/trace"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// testEntities has one of each sort: required adapters or none, cascade and
// restrict, references.
const testEntities = `
entities:
- {kind: Cluster, plural: clusters, name_min_len: 3, name_max_len: 53, spec_schema_name: ClusterSpec, required_adapters: [dns, validation],
   references: [{ref_type: wif_config, target_kind: WifConfig, max: 1}]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade, name_max_len: 15, required_adapters: [node-pool]}
- {kind: Note, plural: notes, parent_kind: Cluster, on_parent_delete: cascade}
- {kind: Channel, plural: channels}
- {kind: Version, plural: versions, parent_kind: Channel, on_parent_delete: restrict}
- {kind: Build, plural: builds, parent_kind: Channel, on_parent_delete: restrict, required_adapters: [builder]}
- {kind: WifConfig, plural: wifconfigs}
- {kind: Pass, plural: passes, parent_kind: Cluster, on_parent_delete: cascade, required_adapters: [credential], expires: expires_at}
- {kind: Visit, plural: visits, expires: until}
- {kind: Stamp, plural: stamps, parent_kind: Visit}
`

const testSchemas = `
openapi: 3.0.3
info: {title: specs, version: v1}
paths: {}
components:
  schemas:
    ClusterSpec:
      type: object
      properties:
        region: {type: string, enum: [us, eu]}
        nodes: {type: integer, minimum: 0}
`

// testAPI is a server of a test with a client.
type testAPI struct {
	t      testing.TB
	server *Server
	base   string
	agreed *contract
	caller Caller
}

func start(t testing.TB) *testAPI { return startOn(t, pgtest.DSN(t)) }

func startOn(t testing.TB, dsn string) *testAPI { return startTraced(t, dsn, nil) }

func startTraced(t testing.TB, dsn string, tracer *trace.Tracer) *testAPI {
	t.Helper()
	a, _ := startWith(t, dsn, func(o *Options) { o.Tracer = tracer })
	return a
}

// startWith starts a server; stop ends it before the test's end.
func startWith(t testing.TB, dsn string, adapt func(*Options)) (a *testAPI, stop func()) {
	t.Helper()
	return startAs(t, dsn, testEntities, adapt)
}

// startAs starts one with other entities.
func startAs(t testing.TB, dsn, entities string, adapt func(*Options)) (a *testAPI, stop func()) {
	t.Helper()
	return startOnStore(t, dsn, entities, store.Options.Patient, adapt)
}

// startOnStore starts a server whose store has these limits.
func startOnStore(t testing.TB, dsn, entities string, limits func(store.Options) store.Options,
	adapt func(*Options)) (a *testAPI, stop func()) {
	t.Helper()
	registry, err := ParseRegistry([]byte(entities))
	if err != nil {
		t.Fatal(err)
	}
	schemas, err := ParseSpecSchemas([]byte(testSchemas))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), DatabaseOptions{DSN: dsn, Registry: registry, Adapt: limits})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Database: db, Specs: schemas, HTTP: l, Version: "test", Identify: claimed}
	adapt(&o)
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	end := testsite.Run(t, "CLM", s.Run)
	stop = sync.OnceFunc(func() {
		end()
		http.DefaultClient.CloseIdleConnections()
		db.Close()
	})
	t.Cleanup(stop)
	a = &testAPI{t: t, server: s, base: "http://" + l.Addr().String(), caller: Caller{Name: "tester@example.com"}}
	if a.agreed, err = agreed(); err != nil {
		t.Fatal(err)
	}
	return a, stop
}

// claimed identifies a caller by the headers that the test sets.
func claimed(r *http.Request) (Caller, error) {
	c := Caller{Name: cmp.Or(r.Header.Get("X-Test-Name"), "client@example.com"), System: r.Header.Get(
		"X-Test-System") != "", Reporter: r.Header.Get("X-Test-Reporter") != ""}
	if org := r.Header.Get("X-Test-Org"); org != "" {
		c.Tenancy = map[string]string{"org": org}
	}
	if account := r.Header.Get("X-Test-Account"); account != "" {
		c.Tenancy = map[string]string{"account": account}
	}
	return c, nil
}

// answer is the answer to a request.
type answer struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   []byte
}

// do sends a request. Headers are "Name: value".
func (a *testAPI) do(method, path, body string, headers ...string) answer {
	a.t.Helper()
	if !strings.HasPrefix(path, "/api/") {
		path = basePath + path
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.base+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Test-Name", a.caller.Name)
	if a.caller.System {
		req.Header.Set("X-Test-System", "yes")
	}
	req.Header.Set("X-Test-Org", a.caller.Tenancy["org"])
	req.Header.Set("X-Test-Account", a.caller.Tenancy["account"])
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	got := answer{a.t, method + " " + path, res.StatusCode, res.Header, data}
	a.agreed.check(a.t, req, body, got)
	return got
}

// version is the version in an answer's ETag.
func version(a answer) string {
	v, _, _ := strings.Cut(strings.Trim(a.header.Get("Etag"), `"`), "-")
	return v
}

// want checks the status, and for errors the code.
func (a answer) want(status int, code ...string) answer {
	a.t.Helper()
	var p struct{ Code string }
	_ = json.Unmarshal(a.body, &p)
	if a.status != status || len(code) > 0 && p.Code != "HYPERFLEET-"+code[0] {
		a.t.Fatalf("%s: %d %s, want %d %v", a.what, a.status, a.body, status, code)
	}
	if status >= 400 && a.header.Get("Content-Type") != "application/problem+json" {
		a.t.Fatalf("%s: the error's content type is %q", a.what, a.header.Get("Content-Type"))
	}
	return a
}

// at returns what is at a dotted path of the body, as text; "" if nothing is.
func (a answer) at(path string) string {
	a.t.Helper()
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		a.t.Fatalf("%s: %v in %s", a.what, err, a.body)
	}
	for name := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[name]
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(at) {
				return ""
			}
			v = at[i]
		default:
			return ""
		}
	}
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	text, _ := json.Marshal(v)
	return string(text)
}

// condition is a condition's status, generation and reason.
func (a answer) condition(kind string) string {
	a.t.Helper()
	var r struct {
		Status struct {
			Conditions []struct {
				Type, Status, Reason string
				ObservedGeneration   int `json:"observed_generation"`
			}
		}
	}
	if err := json.Unmarshal(a.body, &r); err != nil {
		a.t.Fatal(err)
	}
	for _, c := range r.Status.Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s@%d %s", c.Status, c.ObservedGeneration, c.Reason)
		}
	}
	return ""
}

func is(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s is %q, want %q", what, got, want)
	}
}

// cluster makes a cluster and returns its id.
func (a *testAPI) cluster(name string) string {
	a.t.Helper()
	return a.do("POST", "/clusters", `{"kind":"Cluster","name":"`+name+`","spec":{}}`).want(201).at("id")
}

// repeat makes a request again while the answer is 503, as clients do, for a minute at most.
func repeat(t *testing.T, request func() answer) answer {
	t.Helper()
	for start := time.Now(); ; pause.For(t.Context(), 20*time.Millisecond) {
		if got := request(); got.status != 503 || time.Since(start) > time.Minute {
			return got
		}
	}
}

// report sends a report of an adapter. finalized is "", "True" or "False".
func (a *testAPI) report(path string, adapter cluster.Adapter, generation int, available, finalized string) answer {
	a.t.Helper()
	more := ""
	if finalized != "" {
		more = `,{"type":"Finalized","status":"` + finalized + `"}`
	}
	return a.do("PUT", path+"/statuses", fmt.Sprintf(
		`{"adapter":%q,"observed_generation":%d,"observed_time":%q,"conditions":[
		{"type":"Available","status":%q,"reason":"Test"},{"type":"Applied","status":"True"},{"type":"Health","status":"True"}%s]}`,
		adapter, generation, time.Now().UTC().Format(time.RFC3339Nano), available, more))
}
