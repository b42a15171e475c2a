package maestro

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// filled returns a server whose database has n bundles of about size bytes.
// They are copies of one, made in the database, before the server follows it.
func (s *site) filled(n, size int, change ...func(*Options)) *instance {
	s.t.Helper()
	first := s.start()
	first.consumer("mc1")
	first.source().create("mc1", "w0", 1)
	first.end()
	conn, err := pgx.Connect(context.Background(), s.dsn)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), `
		insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
		select kind, 'copy-' || lpad(n::text, 6, '0'), scope, name, version, generation, jsonb_set(spec, '{metadata,labels}', jsonb_build_object('n', (n % 1000)::text, 'all', 'x')), status,
			convert_to(replace(replace(convert_from(wire, 'UTF8'), '"w0"', '"copy-' || n || '"'), '"value":"1"', '"value":"' || repeat('x', $2) || '"'), 'UTF8'), created_at + n * interval '1 ms', updated_at, n
		from document, generate_series(1, $1) n where kind = 'Bundle' and id = 'w0'`, n, size); err != nil {
		s.t.Fatal(err)
	}
	if _, err := conn.Exec(context.Background(), "analyze document"); err != nil {
		s.t.Fatal(err)
	}
	return s.start(change...)
}

// TestALongListDoesNotGrowTheServer holds the memory of a list that is far
// longer than what is allowed to be held of it.
func TestALongListDoesNotGrowTheServer(t *testing.T) {
	const count, size = 6000, 16 << 10
	m := newSite(t).filled(count, size)
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	runtime.GC()
	before, peak := heap(), uint64(0)
	req, err := http.NewRequest("GET", m.url+"/api/maestro/v1/resource-bundles?size=65500", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := m.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	total, buf := 0, make([]byte, 1<<20)
	for {
		n, err := resp.Body.Read(buf)
		total += n
		peak = max(peak, heap())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	if total < count*size {
		t.Fatalf("%d bytes", total)
	}
	if grown := int64(peak) - int64(before); grown > 48<<20 {
		t.Errorf("a list of %d MB grew the heap by %d MB", total>>20, grown>>20)
	}
}

// TestLabelsAreFoundByTheirIndex counts the uses of the index and of others: a
// search that went through all bundles of the source would find the same.
func TestLabelsAreFoundByTheirIndex(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.filled(20_000, 200)
	conn, err := pgx.Connect(t.Context(), site.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	read := func() (rows int64) {
		eventually(t, "statistics are there", func() error {
			return conn.QueryRow(t.Context(),
				`select coalesce(sum(idx_tup_fetch + seq_tup_read), 0) from pg_stat_user_tables where relname = 'document'`).Scan(&rows)
		})
		return rows
	}
	before := read()
	for n := range 20 {
		for _, search := range []string{
			`source='test-source' and consumer_name='mc1' and payload->'metadata'->'labels'@>'{"n":"%d"}'`,
			`source='test-source' and payload->'metadata'->'labels'->>'n'in('%d','none')`,
			`payload->'metadata'->'labels'->>'n'='%d'`,
		} {
			if got := m.bundles("search", fmt.Sprintf(search, n)); len(got) != 20 {
				t.Fatalf("%s: %d bundles", search, len(got))
			}
		}
	}
	m.end() // the server's sessions report what they read at the latest now
	eventually(t, "the reads are counted", func() error {
		if read()-before < 60*20 {
			return errors.New("not yet")
		}
		return nil
	})
	if rows := read() - before; rows > 60*200 {
		t.Errorf("60 searches for 20 bundles each read %d rows", rows)
	}
}

// TestABrokenListDoesNotLookWhole takes the database away in the middle of a
// list.
func TestABrokenListDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"identity", "gzip"} {
		t.Run(encoding, func(t *testing.T) {
			site := newSite(t)
			m := site.filled(3000, 16<<10)
			req, err := http.NewRequest("GET", m.url+"/api/maestro/v1/resource-bundles?size=-1", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept-Encoding", encoding)
			resp, err := m.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			conn, err := pgx.Connect(t.Context(), site.dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if encoding == "gzip" {
				// Compressed, the list may be out already; what counts is that
				// it is whole or broken.
				body := io.Reader(resp.Body)
				_, err := conn.Exec(t.Context(),
					"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and "+
						"pid <> pg_backend_pid()")
				if err != nil {
					t.Fatal(err)
				}
				z, err := gzip.NewReader(body)
				if err != nil {
					return
				}
				data, err := io.ReadAll(z)
				if valid := json.Valid(data); valid != (err == nil) {
					t.Errorf("%d bytes, valid %v: %v", len(data), valid, err)
				}
				return
			}
			first := make([]byte, 1<<10)
			if _, err := io.ReadFull(resp.Body, first); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status, err)
			}
			if _, err := conn.Exec(t.Context(),
				"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid "+
					"<> pg_backend_pid()"); err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, resp.Body)
			if err == nil {
				t.Errorf("a list whose source was lost ends well after %d bytes", n)
			}
		})
	}
}

// TestSlowReadersLeaveConnectionsForOthers holds long lists unread, more than
// there are connections.
func TestSlowReadersLeaveConnectionsForOthers(t *testing.T) {
	m := newSite(t).filled(2000, 16<<10, func(o *Options) { o.MaxConns = 8 })
	done := make(chan *http.Response, 12)
	for range cap(done) {
		go func() {
			req, err := http.NewRequest("GET", m.url+"/api/maestro/v1/resource-bundles?size=-1", nil)
			if err != nil {
				panic(err)
			}
			req.Header.Set("Accept-Encoding", "identity") // compressed it would fit into the buffers between
			resp, err := m.http.Do(req)
			if err != nil {
				resp = nil
			}
			done <- resp
		}()
	}
	served, refused := 0, 0
	for range cap(done) {
		resp := <-done
		if resp == nil {
			t.Fatal("no answer")
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			served++
		case http.StatusServiceUnavailable:
			refused++
		default:
			t.Error(resp.Status)
		}
	}
	if served < 4 {
		t.Errorf("%d are served, %d refused", served, refused)
	}
	begin := time.Now()
	for n := range 20 {
		m.bundle(work.ID(fmt.Sprintf("copy-%06d", n+1)))
	}
	if len(m.bundles("size", "10")) != 10 {
		t.Error("a short list is not served")
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("reads beside %d slow readers took %s", served, took)
	}
}
