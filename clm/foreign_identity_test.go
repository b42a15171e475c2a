package clm

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"atoll.dev/internal/pgtest"
)

// tokened is a server that requires tokens, with a function that makes one.
func tokened(t *testing.T, tenancy Tenancy, pattern string) (*testAPI, func(claims jwt.MapClaims) string) {
	t.Helper()
	key := newKey(t)
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, keySet(t, "k1", &key.PublicKey), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := NewTokens([]Issuer{{IssuerURL: "https://sso", JWKCertFile: file, IdentityClaimPattern: pattern}})
	if err != nil {
		t.Fatal(err)
	}
	identity := &Identity{Tokens: tokens, Tenancy: tenancy}
	a, _ := startWith(t, pgtest.DSN(t), func(o *Options) { o.Identify = identity.Identify })
	return a, func(claims jwt.MapClaims) string {
		all := jwt.MapClaims{"iss": "https://sso", "exp": time.Now().Add(time.Minute).Unix()}
		for name, value := range claims {
			all[name] = value
		}
		return "Authorization: " + token(t, key, "", jwt.SigningMethodRS256, all)
	}
}

// A token without a name allows reading and no change.
func TestForeignTokenWithoutIdentity(t *testing.T) {
	a, holder := tokened(t, Tenancy{}, "")
	const body = `{"kind":"Cluster","name":"abc","spec":{}}`
	named, nameless := holder(jwt.MapClaims{"email": "a@example.com"}), holder(nil)
	id := a.do("POST", "/clusters", body, named).want(201).at("id")
	is(t, "who made it", a.do("GET", "/clusters/"+id, "", nameless).want(200).at("created_by"), "a@example.com")
	a.do("GET", "/clusters", "", nameless).want(200)
	a.do("POST", "/clusters", body, nameless).want(401, "AUT-001")
	a.do("PATCH", "/clusters/"+id, `{"spec":{}}`, nameless).want(401, "AUT-001")
	a.do("DELETE", "/clusters/"+id, "", nameless).want(401, "AUT-001")
	a.do("PUT", "/clusters/"+id+"/statuses", statusBody("dns", 1, time.Now(), "True"), nameless).want(401, "AUT-001")
}

// A token with a name that is too long, has a control character or does not match the pattern
// allows reading, as in the original. CLM refuses a write with an error that does not contain the
// name.
func TestForeignTokenWithAnUnusableIdentity(t *testing.T) {
	a, holder := tokened(t, Tenancy{}, `@example\.com$`)
	const body = `{"kind":"Cluster","name":"abc","spec":{}}`
	id := a.do("POST", "/clusters", body, holder(jwt.MapClaims{"email": "a@example.com"})).want(201).at("id")
	for wantText, name := range map[string]string{
		"more than 256 bytes":  strings.Repeat("x", 246) + "@example.com",
		"a control character":  "a\x1fb@example.com",
		"the required pattern": "mallory@evil.org",
	} {
		unusable := holder(jwt.MapClaims{"email": name})
		a.do("GET", "/clusters/"+id, "", unusable).want(200)
		a.do("GET", "/clusters", "", unusable).want(200)
		got := a.do("POST", "/clusters", body, unusable).want(401, "AUT-001")
		if detail := got.at("detail"); !strings.Contains(detail, wantText) || strings.Contains(detail, name) {
			t.Errorf("a name with %s: %s", wantText, detail)
		}
		a.do("DELETE", "/clusters/"+id, "", unusable).want(401, "AUT-001")
	}
}

// An unknown path is 404 for callers without a token, too.
func TestForeignUnknownPathWithoutToken(t *testing.T) {
	a, _ := tokened(t, Tenancy{}, "")
	a.do("GET", "/nopes", "").want(404, "NTF-000")
	a.do("GET", "/api/other", "").want(404, "NTF-000")
	a.do("GET", "/clusters", "").want(401, "AUT-001")
	if got := a.do("PUT", "/clusters", "{}"); got.status != http.StatusMethodNotAllowed {
		t.Errorf("%d %s", got.status, got.body)
	}
	a.do("GET", "/openapi", "").want(200)
	a.do("GET", "/clusters", "", "Authorization: Basic eA==").want(401, "AUT-002")
}

var orgs = Tenancy{Enabled: true, SystemHeader: "X-System", SystemClaim: "roles", SystemValue: "system",
	Dimensions: []Dimension{{Header: "X-Org", Key: "org", Claim: "account.org", Required: true},
		{Header: "X-Team", Key: "team"}}}

// The system reads and reports; a tenant that it names is ignored.
func TestForeignSystemHeaderWithTenant(t *testing.T) {
	identity := &Identity{Open: true, Tenancy: orgs}
	a, _ := startWith(t, pgtest.DSN(t), func(o *Options) { o.Identify = identity.Identify })
	const body = `{"kind":"Cluster","name":"abc","spec":{}}`
	made := a.do("POST", "/clusters", body, "X-Org: 1").want(201)
	path := "/clusters/" + made.at("id")
	for _, org := range []string{"X-Org: 1", "X-Org: 2", "X-Org: "} {
		a.do("POST", "/clusters", body, "X-System: true", org).want(403, "AUZ-001")
		a.do("PATCH", path, `{"spec":{}}`, "X-System: TRUE", org).want(403, "AUZ-001")
		a.do("DELETE", path, "", "X-System: true", org).want(403, "AUZ-001")
		a.do("GET", path, "", "X-System: true", org).want(200)
		a.do("PUT", path+"/statuses", statusBody("dns", 1, time.Now(), "True"), "X-System: true", org).want(201)
	}
	a.do("GET", path, "", "X-System: yes").want(403, "AUZ-001") // no tenant, and not the system
	a.do("GET", path, "", "X-Org: no such/org").want(403, "AUZ-001")
}

// A caller without an optional dimension sees all resources with its other dimensions.
func TestForeignTenantWithoutAnOptionalDimension(t *testing.T) {
	identity := &Identity{Open: true, Tenancy: orgs}
	a, _ := startWith(t, pgtest.DSN(t), func(o *Options) { o.Identify = identity.Identify })
	const body = `{"kind":"Cluster","name":"abc","spec":{}}`
	make := func(headers ...string) string { return a.do("POST", "/clusters", body, headers...).want(201).at("id") }
	red, blue, all, other := make("X-Org: 1", "X-Team: red"), make("X-Org: 1", "X-Team: blue"), make("X-Org: 1"),
		make("X-Org: 2", "X-Team: red")
	for _, c := range []struct {
		team string
		sees []string
	}{{"red", []string{red}}, {"blue", []string{blue}}, {"", []string{red, blue, all}}} {
		list := a.do("GET", "/clusters", "", "X-Org: 1", "X-Team: "+c.team).want(200)
		is(t, "what team "+c.team+" lists", list.at("total"), fmt.Sprint(len(c.sees)))
		for _, id := range []string{red, blue, all, other} {
			want := 404
			if slices.Contains(c.sees, id) {
				want = 200
			}
			a.do("GET", "/clusters/"+id, "", "X-Org: 1", "X-Team: "+c.team).want(want)
		}
	}
	is(t, "what comes about", a.do("PATCH", "/clusters/"+red, `{"labels":{"a":"b"}}`, "X-Org: 1").want(200).at(
		"tenancy.team"), "red")
	a.do("DELETE", "/clusters/"+other, "", "X-Org: 1").want(404)
}

// With tokens, the tenant comes from the token's claims, and never from a header (I10).
func TestI10TheTenantIsTheTokens(t *testing.T) {
	a, holder := tokened(t, orgs, "")
	const body = `{"kind":"Cluster","name":"abc","spec":{}}`
	one := holder(jwt.MapClaims{"email": "a@one", "account": map[string]any{"org": "1"}})
	two := holder(jwt.MapClaims{"email": "b@two", "account": map[string]any{"org": 2}})
	none := holder(jwt.MapClaims{"email": "c@none"})
	system := holder(jwt.MapClaims{"email": "adapter", "roles": []any{"other", "system"}})

	made := a.do("POST", "/clusters", body, one, "X-Org: 2", "X-Team: x").want(201)
	is(t, "its tenancy", made.at("tenancy"), `{"org":"1"}`)
	path := "/clusters/" + made.at("id")
	a.do("GET", path, "", two).want(404)
	a.do("GET", path, "", two, "X-Org: 1").want(404)
	a.do("GET", path, "", two, "X-System: true").want(404)
	a.do("PATCH", path, `{"labels":{"a":"b"}}`, two, "X-Org: 1").want(404)
	a.do("PUT", path+"/statuses", statusBody("dns", 1, time.Now(), "True"), two, "X-Org: 1", "X-System: true").want(
		403, "AUZ-001")
	is(t, "what the other one lists", a.do("GET", "/clusters", "", two, "X-Org: 1").want(200).at("total"), "0")
	is(t, "the other one's", a.do("POST", "/clusters", body, two).want(201).at("tenancy.org"), "2")
	a.do("GET", path, "", none).want(403, "AUZ-001")
	a.do("GET", path, "", none, "X-Org: 1").want(403, "AUZ-001")
	a.do("GET", path, "", none, "X-System: true").want(403, "AUZ-001")

	a.do("GET", path, "", system).want(200)
	a.do("PUT", path+"/statuses", statusBody("dns", 1, time.Now(), "True"), system).want(201)
	a.do("POST", "/clusters", body, system).want(403, "AUZ-001")
}

// A path's last word gives no right: a member of an adapter may be called as
// the word that reports end in (I10).
func TestI10RightsGoByRoute(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	const reporter = "X-Test-Reporter: yes"
	const lease = `{"lease_ms":60000}`
	a.do("PUT", "/adapters/dns/members/statuses", lease, reporter).want(403, "AUZ-001")
	a.do("PUT", "/adapters/dns/members/one", lease, reporter).want(403, "AUZ-001")
	a.do("PUT", "/adapters/dns/members/statuses", lease).want(200)
	a.do("PUT", path+"/statuses", statusBody("dns", 1, time.Now(), "True"), reporter).want(201)
	for _, unproven := range []Caller{{}, {Reporter: true, Name: "x"}} {
		if mayShare(unproven) == nil {
			t.Errorf("%+v may share work", unproven)
		}
	}
}
