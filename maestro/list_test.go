package maestro

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"atoll.dev/api/cloudevents"
	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
)

// bundles lists and returns the ids.
func (i *instance) bundles(query ...string) []string {
	i.t.Helper()
	v := url.Values{}
	for n := 0; n+1 < len(query); n += 2 {
		v.Set(query[n], query[n+1])
	}
	var l api.ResourceBundleList
	i.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles?"+v.Encode(), "").into(i.t, &l)
	var ids []string
	for _, b := range l.Items {
		ids = append(ids, b.ID)
	}
	if l.Kind != "ResourceBundleList" || l.Size != len(l.Items) {
		i.t.Errorf("%s: kind %s size %d of %d", query, l.Kind, l.Size, len(l.Items))
	}
	return ids
}

// labelled creates a bundle with labels, as a source's ObjectMeta has them.
func (s *source) labelled(consumer work.Consumer, id, labels string) {
	s.t.Helper()
	e := s.event(work.SpecCreate, consumer, work.ID(id), 0,
		[]byte(`{"manifests":[`+configMap(id, 1)+
			`],"executer":{"subject":{"type":"ServiceAccount","serviceAccount":{"namespace":"n","name":"sa"}}}}`))
	e.Attributes["ce-"+work.ExtMetadata] = &cloudevents.CloudEvent_CloudEventAttributeValue{
		Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: `{"name":"name-of-` + id +
			`","labels":` + labels + `}`}}
	if err := s.publish(e); err != nil {
		s.t.Fatalf("creating %s: %v", id, err)
	}
}

// TestTheSearchesOfMaestrosClients has what grpcsource sends, byte for byte.
func TestTheSearchesOfMaestrosClients(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1")
	m.consumer("mc2")
	src := m.source()
	src.labelled("mc1", "w1", `{"k":"v","env":"prod"}`)
	src.labelled("mc1", "w2", `{"k":"a"}`)
	src.labelled("mc2", "w3", `{"k":"b","env":"dev"}`)
	src.labelled("mc2", "w4", `{"other":"its"}`)
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/w2", "")
	for _, c := range []struct {
		search string
		want   []string
	}{
		{`source='test-source' and consumer_name='mc1' and payload->'metadata'->'labels'@>'{"k":"v"}'`, []string{"w1"}},
		{`payload->'metadata'->'labels'@>'{"k":"v","env":"prod"}'`, []string{"w1"}},
		{`payload->'metadata'->'labels'->>'k'in('a','b')`, []string{"w2", "w3"}},
		// w4 lacks the key
		{`payload->'metadata'->'labels'->>'k'<>'a' and payload->'metadata'->'labels'->>'k'<>'b'`, []string{"w1"}},
		{`payload->'metadata'->'labels'->>'k'<>'v'`, []string{"w2", "w3"}},
		{`payload->'metadata'->'labels'->>'k'<>null`, []string{"w1", "w2", "w3"}},
		{`payload->'metadata'->'labels'->>'k'='v'`, []string{"w1"}},
		{`payload->'metadata'->'labels'->>'other'in(its)`, []string{"w4"}},
		{`source='test-source' and (consumer_name='mc1' or consumer_name='mc2')`, []string{"w1", "w2", "w3", "w4"}},
		{`source='another' and (consumer_name='mc1' or consumer_name='mc2')`, nil},
		{`payload->'data'->'manifests'@>'[{"metadata":{"name":"w3"}}]'`, []string{"w3"}},
		{
			`payload->'data'->'executer'->'subject'->>'type'='ServiceAccount' and payload->'metadata'->>'name' like '%-w4'`, []string{"w4"}},
		{`resources.name in ('w1','w4') and deleted_at is null`, []string{"w1", "w4"}},
		{`deleted_at is not null`, []string{"w2"}},
		{`version = 1 and created_at > '2020-01-01T00:00:00Z' and updated_at > 2020-01-01 and type = 'Bundle'`,
			[]string{"w1", "w2", "w3", "w4"}},
		{`not (name ~= '[12]$') and status is null`, []string{"w3", "w4"}},
	} {
		if got := m.bundles("search", c.search); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.search, got, c.want)
		}
	}
	var many []string
	for n := range 5000 {
		many = append(many, fmt.Sprintf("consumer_name='a-management-cluster-%d'", n))
	}
	many = append(many, "consumer_name='mc2'")
	if got := m.bundles("search", "source='test-source' and ("+strings.Join(many, " or ")+")"); !slices.Equal(
		got, []string{"w3", "w4"}) {
		t.Errorf("5001 consumers: %v", got)
	}

	for query, want := range map[string][]string{
		"name desc":                       {"w4", "w3", "w2", "w1"},
		"consumer_name desc, name":        {"w3", "w4", "w1", "w2"},
		"deleted_at, created_at DESC":     {"w2", "w4", "w3", "w1"}, // nulls are last
		"updated_at desc,id asc":          {"w2", "w4", "w3", "w1"},
		"source,type,version,payload, id": nil,
	} {
		if got := m.bundles("orderBy", query); want != nil && !slices.Equal(got, want) || len(got) != 4 {
			t.Errorf("order by %s: %v, want %v", query, got, want)
		}
	}
	for _, bad := range []string{"name up", "nope", "name,,id", "name;drop table document", "name desc desc",
		"created_at nulls first"} {
		a := m.call("GET", "/api/maestro/v1/resource-bundles?orderBy="+url.QueryEscape(bad), "")
		var e api.Error
		a.into(t, &e)
		if a.status != http.StatusBadRequest || e.Code != "maestro-21" ||
			!strings.Contains(e.Reason, "bad order value") {
			t.Errorf("order by %s: %d %s", bad, a.status, a.body)
		}
	}
	for bad, part := range map[string]string{
		"garbage":                        "Failed to parse search query: garbage: at column 8",
		"nope = 'x'":                     `there is no field "nope"`,
		"creator.name = 'x'":             `there is no field "creator.name"`,
		"name = 'x' or 1 = 1 -- ":        "ends where",
		"name = '" + "\x00" + "'":        "NUL",
		"payload->'a'@>'{'":              "not JSON",
		"version = 99999999999999999999": "", // no mistake
	} {
		a := m.call("GET", "/api/maestro/v1/resource-bundles?search="+url.QueryEscape(bad), "")
		if part == "" {
			if a.status != http.StatusOK {
				t.Errorf("%s: %d %s", bad, a.status, a.body)
			}
			continue
		}
		var e api.Error
		a.into(t, &e)
		if a.status != http.StatusBadRequest || e.Code != "maestro-21" || !strings.Contains(e.Reason, part) {
			t.Errorf("%s: %d %s", bad, a.status, a.body)
		}
	}
	if b := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/w1", ""); strings.Contains(string(b.body),
		"executer") {
		t.Errorf("executer is kept, not shown: %s", b.body)
	}
}

func TestPagesHaveTheContractsBounds(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1")
	src := m.source()
	for n := range 5 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	for _, c := range []struct {
		query             string
		page, size, total int
	}{
		{"", 1, 5, 5}, {"page=0", 1, 5, 5}, {"page=-3", 1, 5, 5}, {"size=2", 1, 2, 5}, {"size=2&page=3", 3, 1, 5},
		{"size=2&page=4", 4, 0, 5},
		{"size=5", 1, 5, 5}, {"size=0", 1, 0, 5}, {"size=0&page=7", 7, 0, 5}, {"size=-1", 1, 5, 5},
		{"size=65501", 1, 5, 5}, {"size=2147483647&page=2147483647", 2147483647, 0, 5},
		{"size=2&search=name%3E%27w1%27", 1, 2, 3},
	} {
		var l api.ResourceBundleList
		a := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles?"+c.query, "")
		a.into(t, &l)
		if l.Page != c.page || l.Size != c.size || int(l.Total) != c.total || len(l.Items) != c.size || l.Items == nil {
			t.Errorf("%s: page %d size %d total %d with %d items", c.query, l.Page, l.Size, l.Total, len(l.Items))
		}
		if !strings.HasPrefix(string(a.body), `{"kind":"ResourceBundleList","page":`) {
			t.Errorf("%.60s", a.body)
		}
	}
}

func TestConsumersAreSearchedByTheirLabels(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	for name, zone := range map[string]string{"mc1": "a", "mc2": "b", "mc3": "b"} {
		m.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{"name":"`+name+`","labels":{"zone":"`+zone+
			`"}}`)
	}
	for search, want := range map[string]string{
		"labels.zone = 'b'":           "mc3 mc2",
		"labels->>'zone'='a'":         "mc1",
		`labels@>'{"zone":"b"}'`:      "mc3 mc2",
		"labels.zone is null":         "",
		"consumers.name like 'mc_'":   "mc3 mc2 mc1",
		"name in ('mc1', 'mc2')":      "mc2 mc1",
		"created_at < 2000-01-01":     "",
		"not (labels.zone = 'b')":     "mc1",
		"name = 'mc1' or id = name":   "mc1",
		"deleted_at is null":          "mc3 mc2 mc1",
		"(name) = 'mc1'":              "mc1",
		"labels['zone'] is not null ": "400",
	} {
		a := m.call("GET", "/api/maestro/v1/consumers?orderBy=name+desc&search="+url.QueryEscape(search), "")
		var l api.ConsumerList
		a.into(t, &l)
		var names []string
		for _, c := range l.Items {
			names = append(names, c.Name)
		}
		if got := strings.Join(names, " "); a.status == http.StatusOK && got != want || a.status != http.StatusOK &&
			want != fmt.Sprint(a.status) {
			t.Errorf("%s: %d %q, want %q", search, a.status, got, want)
		}
	}
}

func TestAnswersAreCompressedWhenAsked(t *testing.T) {
	t.Parallel()
	m := newSite(t).start(func(o *Options) { o.CORSOrigins = []string{"https://console.example.com"} })
	m.consumer("mc1")
	src := m.source()
	for n := range 20 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	plain := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/", "", "Accept-Encoding", "identity")
	packed := m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles", "", "Accept-Encoding", "br, gzip;q=0.5")
	if plain.header.Get("Content-Encoding") != "" || packed.header.Get("Content-Encoding") != "gzip" ||
		len(packed.body) > len(plain.body)/3 {
		t.Fatalf("%d bytes, compressed %d", len(plain.body), len(packed.body))
	}
	z, err := gzip.NewReader(strings.NewReader(string(packed.body)))
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := io.ReadAll(z); err != nil || string(unpacked) != string(plain.body) {
		t.Errorf("%v: %.100s", err, unpacked)
	}
	for _, refused := range []string{"", "gzip;q=0", "deflate"} {
		if a := m.call("GET", "/api/maestro/v1/resource-bundles", "", "Accept-Encoding", refused); refused != "" &&
			a.header.Get("Content-Encoding") != "" {
			t.Errorf("%q: %v", refused, a.header)
		}
	}
	if got := plain.header.Values("Vary"); !slices.Contains(got, "Authorization") {
		t.Errorf("Vary: %v", got)
	}
	pre := m.want(http.StatusNoContent, "OPTIONS", "/api/maestro/v1/consumers", "", "Origin",
		"https://console.example.com", "Access-Control-Request-Method", "PATCH")
	if pre.header.Get("Access-Control-Allow-Origin") != "https://console.example.com" ||
		!strings.Contains(pre.header.Get("Access-Control-Allow-Methods"), "PATCH") {
		t.Errorf("preflight: %v", pre.header)
	}
	if a := m.call("GET", "/api/maestro/v1", "", "Origin", "https://evil.example.com"); a.header.Get(
		"Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin: %v", a.header)
	}
	if a := m.want(http.StatusNotFound, "OPTIONS", "/api/maestro/v1/consumers", ""); a.header.Get("Vary") == "" {
		t.Error("no Vary")
	}
}
