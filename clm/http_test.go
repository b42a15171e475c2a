package clm

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// Every answer has these headers and members.
func TestAnswersHaveTheContractsForm(t *testing.T) {
	a := start(t)
	id := a.cluster("abc")
	for _, path := range []string{"/api/hyperfleet", "/api/hyperfleet/", "/openapi", "/openapi.html", "/clusters/",
		"/clusters/" + id + "/"} {
		res := a.do("GET", path, "", "X-Request-Id: r-7").want(200)
		if vary := strings.Join(res.header.Values("Vary"), ", "); !strings.Contains(vary, "Authorization") ||
			res.header.Get("X-Request-Id") != "r-7" {
			t.Errorf("%s: Vary is %q, X-Request-Id %q", path, vary, res.header.Get("X-Request-Id"))
		}
	}
	is(t, "the metadata", string(a.do("GET", "/api/hyperfleet", "").body),
		`{"href":"/api/hyperfleet","id":"hyperfleet","kind":"API","version":"test"}`+"\n")
	if page := a.do("GET", "/openapi.html", ""); !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") ||
		!strings.Contains(string(page.body), "/clusters/{parent_id}/nodepools/{id}/statuses") {
		t.Errorf("the page is %s %s", page.header.Get("Content-Type"), page.body)
	}

	// A wrong method is ServeMux's own answer.
	wrong := a.do("PUT", "/clusters", "{}")
	if wrong.status != 405 || !strings.HasPrefix(wrong.header.Get("Content-Type"), "text/plain") ||
		wrong.header.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("405: %d %v %s", wrong.status, wrong.header, wrong.body)
	}
	lost := a.do("GET", "/nothing", "", "X-Request-Id: r-8").want(404, "NTF-000")
	for path, want := range map[string]string{
		"type": "https://api.hyperfleet.io/errors/not-found", "title": "Endpoint Not Found", "status": "404",
		"instance": basePath + "/nothing", "trace_id": "r-8",
	} {
		is(t, path, lost.at(path), want)
	}
	page := a.do("GET", "/clusters?page=x&size=0", "").want(400, "VAL-000")
	is(t, "what is wrong", page.at("errors.0.field")+" "+page.at("errors.0.constraint")+" "+page.at("errors.0.value")+
		" "+page.at("errors.1.constraint"), "page format x min")
	long := a.do("POST", "/clusters", `{"kind":"Cluster","name":"`+strings.Repeat("x", 54)+
		`","spec":{"nodes":-1}}`).want(400, "VAL-000")
	is(t, "what is wrong", long.at("errors.1.constraint")+" "+long.at("errors.0.field")+" "+long.at(
		"errors.0.constraint")+" "+long.at("errors.0.value"), "max_length spec.nodes min -1")
}

func TestLongAnswersAreCompressed(t *testing.T) {
	a := start(t)
	for i := range 10 {
		a.cluster(fmt.Sprintf("c-%d", i))
	}
	res := a.do("GET", "/clusters", "", "Accept-Encoding: gzip").want(200)
	is(t, "the encoding", res.header.Get("Content-Encoding"), "gzip")
	z, err := gzip.NewReader(strings.NewReader(string(res.body)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Total int }
	if err := json.Unmarshal(plain, &list); err != nil || list.Total != 10 {
		t.Fatalf("%v: %s", err, plain)
	}
}

func TestListsSelectByReference(t *testing.T) {
	a := start(t)
	wif := a.do("POST", "/wifconfigs", `{"kind":"WifConfig","name":"w","spec":{}}`).want(201).at("id")
	query := "?ref_type=wif_config&ref_target_id=" + wif
	w := a.watch(t, "/clusters"+query+"&watch=true")
	w.want("BOOKMARK")
	path := "/clusters/" + a.cluster("abc")
	a.do("PATCH", path, `{"references":{"wif_config":[{"id":"`+wif+`","kind":"WifConfig"}]}}`).want(200)
	w.want("ADDED abc")
	is(t, "who refers to it", a.do("GET", "/resources"+query, "").at("total"), "1")
	a.do("GET", "/wifconfigs"+query, "").want(400, "VAL-000")
	a.do("DELETE", path, "").want(202)
	w.want("DELETED abc")
	is(t, "fields and order, in several parts", string(a.do("GET", path+"?fields=name,,&fields=labels.x", "").want(
		200).body), fmt.Sprintf(`{"id":%q,"name":"abc"}`, path[10:]))
	a.do("GET", "/clusters?order="+url.QueryEscape("name asc,")+"&order=id", "").want(200)
	if res, err := http.Head(a.base + "/api/hyperfleet"); err != nil || res.StatusCode != 200 {
		t.Errorf("HEAD: %v %v", res, err)
	} else {
		res.Body.Close()
	}
}

// A name is free as soon as the deletion of its resource is requested.
func TestANameCanBeReused(t *testing.T) {
	a := start(t)
	first := a.cluster("abc")
	pool := a.do("POST", "/clusters/"+first+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201).at("id")
	a.do("DELETE", "/nodepools/"+pool, "").want(202)
	a.do("POST", "/clusters/"+first+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201)
	a.do("POST", "/clusters/"+first+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(409, "CNF-001")
	is(t, "pools", a.do("GET", "/clusters/"+first+"/nodepools", "").at("total"), "2")
	a.do("DELETE", "/clusters/"+first, "").want(202)
	second := a.cluster("abc")
	a.do("POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{}}`).want(409, "CNF-001")
	if list := a.do("GET", "/clusters?search=name='abc'", ""); list.at("total") != "2" || first == second {
		t.Fatalf("%s", list.body)
	}
}
