package rosa_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/platform"
)

// answerOf is all that a sender sees of an answer, with the ids of the request's objects replaced.
type answerOf struct {
	Status  int
	Headers http.Header
	Body    string
	// Work is what the region has done for the answer: decisions, and statements in its databases. A sender sees it by
	// the time of the answer.
	Work []string
}

// variable are the headers that differ from answer to answer, whatever the request is about.
var variable = []string{"Date", "X-Request-Id", "X-Amz-Apigw-Id", "X-Amzn-Requestid", "X-Operation-Id",
	"X-Ratelimit-Remaining", "X-Ratelimit-Reset"}

// observe sends a request and returns what its sender sees. hide replaces ids.
func (a *authorized) observe(who, method, path, body string, hide *strings.Replacer) answerOf {
	a.t.Helper()
	w, data := a.send(who, method, path, body)
	headers := http.Header{}
	for name, values := range w.Header {
		if !slices.Contains(variable, name) {
			headers[name] = []string{hide.Replace(strings.Join(values, ","))}
		}
	}
	work := a.lifecycle.work.of(w.Header.Get("X-Operation-Id"))
	return answerOf{w.StatusCode, headers, hide.Replace(string(data)), work}
}

// victim is what one account has, by the beginning of the paths that name it.
type victim struct {
	account, root string
	ids           map[string]string // of "/clusters/" and so on
	names         []string          // of the account, that nobody else may see
}

// makeVictim makes one object of each kind in an account.
func (a *authorized) makeVictim(account, root, name string) victim {
	a.t.Helper()
	post := func(path, id, body string) string {
		text, _ := a.want(root, "POST", path, body, 201, "")[id].(string)
		if text == "" {
			a.t.Fatalf("POST %s answers without %s", path, id)
		}
		return text
	}
	cluster := post("/clusters", "id", `{"name":"`+name+`-cluster"}`)
	policy := post("/authz/policies", "policyId",
		`{"name":"`+name+`-policy","policy":"permit (principal, action, resource);"}`)
	group := post("/authz/groups", "groupId", `{"name":"`+name+`-group"}`)
	return victim{account: account, root: root, names: []string{name + "-"}, ids: map[string]string{
		"/clusters/":  cluster,
		"/nodepools/": post("/nodepools", "id", `{"cluster_id":"`+cluster+`","name":"`+name+`-pool"}`),
		"/policies/":  policy, "/groups/": group, "/attachments/": post("/authz/attachments", "attachmentId",
			`{"policyId":"`+policy+`","targetType":"group","targetId":"`+group+`"}`),
	}}
}

// aboutTheRegion are the paths about no object of an account: see TestEveryRouteRefusesI10 and
// TestACustomerFindsNoInventory.
var aboutTheRegion = regexp.MustCompile(`/(accounts|work|resource_bundles|management_clusters|live|ready|openapi)\b`)

// missingID stands for an id of an object that does not exist.
const missingID = "ffffffff-0000-4000-8000-000000000000"

// Two customers and an operator attack each other. An answer about an object of somebody else is, in status, headers,
// body and in the work that it costs, the answer about an object that does not exist: through every route of the
// document about what accounts have, with several bodies, and with ids also in the body and in the query. A DELETE of a
// node pool of somebody else locked rows and read three times, which a DELETE of a missing one did not.
func TestAnObjectOfSomebodyElseIsAsMissingI10(t *testing.T) {
	a := startAuthorized(t)
	one := a.makeVictim(ownerAccount, root, "first")
	two := a.makeVictim(otherAccount, otherRoot, "second")
	doc, err := openapi3.NewLoader().LoadFromData(platform.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	attacks := 0
	for _, attack := range []struct {
		by string
		on victim
	}{{otherRoot, one}, {root, two}, {regionOperator, one}, {regionOperator, two}} {
		for path, item := range doc.Paths.Map() {
			if aboutTheRegion.MatchString(path) {
				continue
			}
			for method := range item.Operations() {
				attacks += a.attack(attack.by, attack.on, method, strings.TrimPrefix(path, "/api/v0"))
			}
		}
	}
	if attacks < 500 {
		t.Errorf("only %d attacks", attacks)
	}
	for _, v := range []victim{one, two} {
		for part, id := range v.ids {
			path := part + id
			if slices.Contains([]string{"/policies/", "/groups/"}, part) {
				path = "/authz" + path
			} else if part != "/clusters/" && part != "/nodepools/" {
				continue
			}
			a.want(v.root, "GET", path, "", 200, "")
		}
	}
}

// attack sends what a route takes, once about objects of the victim and once about missing ones, and returns how often.
func (a *authorized) attack(by string, on victim, method, path string) (attacks int) {
	a.t.Helper()
	rename := strings.NewReplacer(slices.Collect(func(yield func(string) bool) {
		for _, id := range on.ids {
			_ = yield(id) && yield(missingID)
		}
	})...)
	of := on.ids["/clusters/"]
	for part, id := range on.ids {
		if strings.Contains(path, part) {
			of = id
		}
	}
	// Who is no administrator anywhere stands for the root of the other account.
	path = strings.NewReplacer("{id}", of, "{cid}", missingID, "{arn}", url.PathEscape(on.root)).Replace(path)
	bodies := []string{""}
	if method != http.MethodGet {
		bodies = []string{`{}`, `{"spec":{}}`, `{"name":"x"}`, `{"key":"encryption","step":"prepare"}`,
			`{"name":"x","cluster_id":"` + on.ids["/clusters/"] + `"}`, `{"add":["` + by + `"]}`,
			`{"policyId":"` + on.ids["/policies/"] + `","targetType":"group","targetId":"` + on.ids["/groups/"] + `"}`}
		if !strings.Contains(path, on.ids["/clusters/"]) && !strings.Contains(path, of) {
			bodies = bodies[4:] // the others are about no object of the victim
			bodies = slices.Delete(bodies, 1, 2)
		}
	}
	queries := []string{""}
	if method == http.MethodGet {
		queries = []string{"", "?id=" + of, "?cluster_id=" + of, "?resource=" + of, "?name=" + on.names[0] + "cluster"}
	}
	plain := strings.NewReplacer()
	for _, body := range bodies {
		for _, query := range queries {
			seen := a.observe(by, method, path+query, body, rename)
			want := a.observe(by, method, rename.Replace(path+query), rename.Replace(body), plain)
			attacks++
			// These answers are about the sender's own account: a new object of it, what it has by a name, and the records of
			// all the requests that it has sent here. They are searched for names only.
			made := seen.Status == http.StatusCreated && !strings.Contains(path, of)
			if made || strings.HasPrefix(query, "?name=") || path == "/audit" {
				want = seen
			}
			if diff := cmp.Diff(want, seen); diff != "" {
				a.t.Errorf("%s: %s %s %s (-of nobody +of another account):\n%s", by, method, path+query, body, diff)
			}
			for _, name := range on.names {
				if strings.Contains(seen.Body, name) && !strings.Contains(query, name) {
					a.t.Errorf("%s: %s %s %s shows a name of %s: %s", by, method, path+query, body, on.account,
						seen.Body)
				}
			}
			if strings.Contains(path, of) && method != http.MethodGet && seen.Status < 300 {
				a.t.Errorf("%s: %s %s %s of %s: %d", by, method, path, body, on.account, seen.Status)
			}
		}
	}
	return attacks
}

// A watch shows nothing of another account, neither changes nor deletions. Names are of an account: two accounts may
// have the same one, and no answer tells that another has it.
func TestWatchesAndNamesShowNothingOfOthersI10(t *testing.T) {
	a := startAuthorized(t)
	own := a.want(otherRoot, "POST", "/clusters", `{"name":"shared-name"}`, 201, "")["id"].(string)
	theirs := a.want(root, "POST", "/clusters", `{"name":"shared-name"}`, 201, "")["id"].(string)
	next := a.watch(t, otherRoot, "/clusters?watch=true")
	a.want(root, "PATCH", "/clusters/"+theirs, `{"spec":{"displayName":"hidden-name"}}`, 200, "")
	gone := a.want(root, "POST", "/clusters", `{"name":"hidden-name"}`, 201, "")["id"].(string)
	a.want(root, "DELETE", "/clusters/"+gone, "", 202, "")
	a.want(otherRoot, "PATCH", "/clusters/"+own, `{"spec":{"displayName":"own-name"}}`, 200, "")
	for line := next(); !strings.Contains(line, "own-name"); line = next() {
		for _, shown := range []string{theirs, gone, "hidden-name", ownerAccount} {
			if strings.Contains(line, shown) {
				t.Errorf("the watch shows %q: %s", shown, line)
			}
		}
	}
	for _, who := range []string{otherRoot, regionOperator} {
		a.want(who, "GET", "/clusters/"+theirs+"/events?watch=true", "", 404, "")
	}
}

// watch opens a watch and returns a function that reads its next line.
func (a *authorized) watch(t *testing.T, who, path string) (next func() string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", a.server.URL+"/api/v0"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Test-Principal", who)
	w, err := a.server.Client().Do(r)
	if err != nil || w.StatusCode != http.StatusOK {
		t.Fatalf("watching %s: %v, %v", path, w, err)
	}
	t.Cleanup(func() { _ = w.Body.Close() })
	lines := bufio.NewScanner(w.Body)
	return func() string {
		if !lines.Scan() {
			t.Fatal(fmt.Errorf("the watch %s ended: %w", path, lines.Err()))
		}
		if !json.Valid(lines.Bytes()) {
			t.Fatalf("the watch %s sends %q", path, lines.Text())
		}
		return lines.Text()
	}
}
