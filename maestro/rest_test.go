package maestro

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/maestro/restapi"
	"atoll.dev/pki"
)

func TestDiscovery(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	for path, want := range map[string]string{
		"/api/maestro":     `{"id":"maestro","href":"/api/maestro","kind":"API","versions":[{"id":"v1","href":"/api/maestro/v1","kind":"","collections":null}]}`,
		"/api/maestro/v1/": `{"id":"v1","href":"/api/maestro/v1","kind":"APIVersion","collections":[{"id":"resources","href":"/api/maestro/v1/resources","kind":"ResourceList"}]}`,
	} {
		if got := m.want(http.StatusOK, "GET", path, ""); string(got.body) != want {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	var doc struct{ OpenAPI string }
	m.want(http.StatusOK, "GET", "/api/maestro/v1/openapi", "").into(t, &doc)
	if doc.OpenAPI != "3.0.3" {
		t.Errorf("openapi %q", doc.OpenAPI)
	}
	if a := m.want(http.StatusOK, "GET", "/api/maestro/v1/openapi", "", "Accept",
		"application/yaml"); !strings.HasPrefix(string(a.body), "openapi: ") {
		t.Errorf("not YAML: %.40s", a.body)
	}
	var list api.ErrorList
	m.want(http.StatusOK, "GET", "/api/maestro/v1/errors", "").into(t, &list)
	for _, e := range list.Items {
		var one api.Error
		m.want(http.StatusOK, "GET", e.Href, "").into(t, &one)
		if one.Code != e.Code {
			t.Errorf("%s: %s", e.Href, one.Code)
		}
	}
	m.want(http.StatusNotFound, "GET", "/api/maestro/v1/errors/4711", "")
}

func TestConsumers(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	created := m.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{"name":"mc1","labels":{"zone":"a"}}`)
	var c api.Consumer
	created.into(t, &c)
	if c.Kind != "Consumer" || c.Name != "mc1" || c.Labels["zone"] != "a" || c.Href != "/api/maestro/v1/consumers/"+
		c.ID || c.ID == "mc1" || c.CreatedAt.IsZero() {
		t.Errorf("created %s", created.body)
	}
	if tag := created.header.Get("Etag"); tag != `"1"` {
		t.Errorf("ETag %s", tag)
	}
	var unnamed api.Consumer
	m.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{}`).into(t, &unnamed)
	if unnamed.Name != unnamed.ID {
		t.Errorf("default name %q of %q", unnamed.Name, unnamed.ID)
	}

	patched := m.want(http.StatusOK, "PATCH", c.Href, `{"labels":{"zone":"b","tier":"1"}}`, "If-Match", `"1"`)
	var c2 api.Consumer
	patched.into(t, &c2)
	if diff := cmp.Diff(map[string]string{"zone": "b", "tier": "1"}, c2.Labels); diff != "" ||
		patched.header.Get("Etag") != `"2"` {
		t.Errorf("patched %s: %s", patched.header, diff)
	}
	// A content-equal write changes nothing (I3).
	if again := m.want(http.StatusOK, "PATCH", c.Href, `{"labels":{"tier":"1","zone":"b"}}`); again.header.Get(
		"Etag") != `"2"` {
		t.Errorf("ETag of an equal write %s", again.header.Get("Etag"))
	}
	m.refuse(http.StatusPreconditionFailed, "maestro-412", "PATCH", c.Href, `{"labels":{}}`, "If-Match", `"1"`)
	m.refuse(http.StatusPreconditionFailed, "maestro-412", "DELETE", c.Href, "", "If-Match", `"1"`)

	var list api.ConsumerList
	m.want(http.StatusOK, "GET", "/api/maestro/v1/consumers?search="+escape("name = 'mc1'"), "").into(t, &list)
	if list.Kind != "ConsumerList" || list.Total != 1 || list.Size != 1 || list.Page != 1 || list.Items[0].ID != c.ID {
		t.Errorf("search %+v", list)
	}
	m.want(http.StatusNoContent, "DELETE", c.Href, "")
	m.want(http.StatusNoContent, "DELETE", c.Href, "") // unknown is no error
	m.refuse(http.StatusNotFound, "maestro-7", "GET", c.Href, "")
	m.refuse(http.StatusNotFound, "maestro-7", "PATCH", c.Href, `{"labels":{}}`)
	m.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{"name":"mc1"}`)
}

func TestAConsumerWithBundlesStays(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	c := m.consumer("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)
	m.refuse(http.StatusForbidden, "maestro-4", "DELETE", c.Href, "")
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/w1", "")
	m.refuse(http.StatusForbidden, "maestro-4", "DELETE", c.Href, "") // those under deletion count
	site.agent("mc1")
	eventually(t, "the consumer can be deleted", func() error {
		if a := m.call("DELETE", c.Href, ""); a.status != http.StatusNoContent {
			return fmt.Errorf("status %d: %s", a.status, a.body)
		}
		return nil
	})
}

func TestCallersMistakesAre4xx(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1")
	long := strings.Repeat("x", 64)
	for _, c := range []struct {
		status int
		code   string
		method string
		path   string
		body   string
	}{
		{400, "maestro-8", "POST", "/api/maestro/v1/consumers", `{"id":"x"}`},
		{400, "maestro-8", "POST", "/api/maestro/v1/consumers", `{"name":"Not_A_Label"}`},
		{400, "maestro-8", "POST", "/api/maestro/v1/consumers", `{"name":"` + long + `"}`},
		{400, "maestro-8", "POST", "/api/maestro/v1/consumers", `{"name":"system:maestro"}`},
		{400, "maestro-8", "POST", "/api/maestro/v1/consumers", `{"name":"mc2","labels":{"a b":"c"}}`},
		{400, "maestro-17", "POST", "/api/maestro/v1/consumers", `{`},
		{400, "maestro-17", "POST", "/api/maestro/v1/consumers", ``},
		{400, "maestro-17", "POST", "/api/maestro/v1/consumers", `{"name":7}`},
		{400, "maestro-17", "POST", "/api/maestro/v1/consumers", `{"name":"mc3","labels":{"a":"\u0000"}}`},
		{409, "maestro-6", "POST", "/api/maestro/v1/consumers", `{"name":"mc1"}`},
		{413, "maestro-413", "POST", "/api/maestro/v1/consumers", `{"name":"` + strings.Repeat("x", 2<<20) + `"}`},
		{400, "maestro-21", "GET", "/api/maestro/v1/consumers?page=x", ``},
		{400, "maestro-21", "GET", "/api/maestro/v1/consumers?size=x", ``},
		{400, "maestro-21", "GET", "/api/maestro/v1/consumers?orderBy=name%20up", ``},
		{400, "maestro-21", "GET", "/api/maestro/v1/consumers?search=" + escape("name like 5"), ``},
		{400, "maestro-21", "GET", "/api/maestro/v1/resource-bundles?search=" + escape(
			"payload->'metadata'->'labels'@>'{'"), ``},
		{400, "maestro-21", "GET", "/api/maestro/v1/resource-bundles?watch=perhaps", ``},
		{404, "maestro-7", "GET", "/api/maestro/v1/resource-bundles/none", ``},
		{412, "maestro-412", "DELETE", "/api/maestro/v1/resource-bundles/none", ``},
	} {
		var header []string
		if c.code == "maestro-412" {
			header = []string{"If-Match", "*"}
		}
		m.refuse(c.status, c.code, c.method, c.path, c.body, header...)
	}
}

func TestUnknownRoutesHaveTheirOwnShape(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	for _, call := range []string{"GET /api/maestro/v1/nothing", "POST /api/maestro/v1/resource-bundles",
		"PUT /api/maestro/v1/consumers/x"} {
		method, path, _ := strings.Cut(call, " ")
		a := m.want(http.StatusNotFound, method, path, "{}")
		want := fmt.Sprintf(
			`{"type":"Error","id":"404","href":"/api/maestro/v1/errors/404","code":"maestro-404","reason":"The requested resource '%s' doesn't exist"}`, path)
		if got := strings.TrimSpace(string(a.body)); got != want {
			t.Errorf("%s: %s", call, got)
		}
	}
}

func TestTheOperationIDIsEchoed(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	a := m.call("GET", "/api/maestro/v1/consumers/none", "", "X-Operation-ID", "op-1")
	var e api.Error
	a.into(t, &e)
	if a.header.Get("X-Operation-Id") != "op-1" || e.OperationID != "op-1" {
		t.Errorf("%v %s", a.header, a.body)
	}
	if a := m.call("GET", "/api/maestro/v1", ""); a.header.Get("X-Operation-Id") == "" {
		t.Error("no operation id of its own")
	}
}

func TestBundles(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1")
	m.consumer("mc2")
	src := m.source()
	for n := range 5 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	src.create("mc2", "other", 1)
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/w4", "")
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/w4", "") // idempotent
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/unknown", "")

	list := func(query string) (ids []string, l api.ResourceBundleList) {
		m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles?"+query, "").into(t, &l)
		for _, b := range l.Items {
			ids = append(ids, b.ID)
		}
		if l.Kind != "ResourceBundleList" || l.Size != len(l.Items) {
			t.Errorf("%s: kind %s size %d of %d", query, l.Kind, l.Size, len(l.Items))
		}
		return ids, l
	}
	if ids, l := list("page=2&size=2"); !slices.Equal(ids, []string{"w2", "w3"}) || l.Total != 6 || l.Page != 2 {
		t.Errorf("page 2: %v of %d", ids, l.Total)
	}
	if ids, l := list("size=-1"); len(ids) != 6 || l.Items[4].DeletedAt == nil {
		t.Errorf("all: %v; those under deletion are listed", ids)
	}
	if ids, l := list("size=0"); len(ids) != 0 || l.Total != 6 {
		t.Errorf("size 0: %v of %d", ids, l.Total)
	}
	if ids, _ := list("page=99"); len(ids) != 0 {
		t.Errorf("behind the last page: %v", ids)
	}
	if ids, _ := list("search=" + escape("source='test-source' and consumer_name='mc2'")); !slices.Equal(
		ids, []string{"other"}) {
		t.Errorf("search: %v", ids)
	}
	if ids, _ := list("search=" + escape("source='it''s another'")); len(ids) != 0 {
		t.Errorf("search: %v", ids)
	}
	a := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles?size=1&fields=name,metadata.labels", "")
	if want := `{"kind":"ResourceBundleList","page":1,"size":1,"total":6,"items":[{"id":"w0","metadata":{"labels":{"app":"test"}},"name":"w0"}]}`; string(a.body) != want {
		t.Errorf("fields: %s", a.body)
	}

	got := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/w4", "")
	if got.header.Get("Etag") != `"2"` {
		t.Errorf("ETag %s", got.header.Get("Etag"))
	}
	var raw map[string]any
	got.into(t, &raw)
	meta := raw["metadata"].(map[string]any)
	if meta["name"] != "name-of-w4" || meta["creationTimestamp"] == nil || meta["deletionTimestamp"] == nil {
		t.Errorf("metadata %v: the name is the source's, the times are the row's", meta)
	}
	if raw["name"] != "w4" || raw["consumer_name"] != "mc1" || raw["version"] != 1.0 ||
		raw["kind"] != "ResourceBundle" || raw["href"] != "/api/maestro/v1/resource-bundles/w4" {
		t.Errorf("bundle %s", got.body)
	}
	if raw["status"] == nil || raw["manifests"].([]any)[0].(map[string]any)["kind"] != "ConfigMap" {
		t.Errorf("bundle %s", got.body)
	}
	m.refuse(http.StatusPreconditionFailed, "maestro-412", "DELETE", "/api/maestro/v1/resource-bundles/w1", "",
		"If-Match", `"7"`)
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/w1", "", "If-Match", `"1"`)
}

// TestNobodyCallsWithoutAnIdentity holds I10 for Maestro's ports.
func TestNobodyCallsWithoutAnIdentity(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.http = site.client(pki.Name("mc1")) // an agent's certificate: of our CA, but nobody who may call
	for _, route := range restapi.Routes() {
		method, path, ok := strings.Cut(route, " ")
		if !ok {
			method, path = "GET", "/"
		}
		m.refuse(http.StatusForbidden, "maestro-4", method, strings.ReplaceAll(path, "{id}", "x"), "")
	}
	bare := site.ClientTLS("mc1", "maestro")
	bare.Certificates = nil
	m.http = &http.Client{Transport: &http.Transport{TLSClientConfig: bare}}
	if a, err := m.try("GET", "/api/maestro", ""); err == nil {
		t.Errorf("status %d without a certificate", a.status)
	}
	agent := &source{t: t, client: m.dial("mc1"), name: testSource}
	if err := agent.publish(agent.event(work.SpecCreate, "mc1", "w1", 0, specData(configMap("x", 1)))); !isCode(
		err, "PermissionDenied") {
		t.Errorf("publish: %v", err)
	}
}

func TestTheActorIsWrittenDown(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{"name":"mc1"}`,
		"X-Atoll-Principal", "arn:aws:iam::1:user/ann", "X-Atoll-Account", "1", "X-Atoll-Request-Id", "r1")
	m.http = site.client("operator") // known, but no service: its word about others is not taken
	m.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{"name":"mc2"}`, "X-Atoll-Principal",
		"arn:aws:iam::1:user/ann")
	got := historyOf(t, site.dsn, "Consumer")
	want := []string{"create arn:aws:iam::1:user/ann 1 r1", "create operator  "}
	if len(got) == 2 {
		got[1] = got[1][:len("create operator  ")] // the request id is made up
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// refuse insists on an error of the contract's shape.
func (i *instance) refuse(status int, code, method, path, body string, header ...string) {
	i.t.Helper()
	a := i.call(method, path, body, header...)
	var e api.Error
	if err := json.Unmarshal(a.body, &e); err != nil || a.status != status || e.Code != code {
		i.t.Errorf("%s %s %.80s: %d %s; want %d %s", method, path, body, a.status, a.body, status, code)
		return
	}
	id := strings.TrimPrefix(code, "maestro-")
	if e.Kind != "Error" || e.ID != id || e.Href != "/api/maestro/v1/errors/"+id || e.Reason == "" ||
		e.OperationID == "" {
		i.t.Errorf("%s %s: %s", method, path, a.body)
	}
}

func escape(s string) string {
	return strings.NewReplacer(" ", "%20", "'", "%27", "=", "%3D", "{", "%7B", "}", "%7D", "@", "%40", ">", "%3E", "%",
		"%25").Replace(s)
}

func TestLastSeenDoesNotHideBehind304(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	c := m.consumer("mc1")
	m.want(http.StatusOK, "GET", c.Href, "", "If-None-Match", `"1"`)
	if c.UpdatedAt.Sub(c.CreatedAt) > time.Second {
		t.Error("times differ")
	}
}
