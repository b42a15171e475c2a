package cluster_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"strings"
	"testing"

	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

// checkIssuers returns a spec with issuers as it is stored, and its problems.
func checkIssuers(t *testing.T, issuers string) (string, document.Problems) {
	t.Helper()
	spec, err := document.Decode([]byte(`{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.3"}},
		"authentication":{"issuers":` + issuers + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	var p document.Problems
	rules := cluster.ClusterRules{Releases: cluster.Releases{{Version: "1.36.3", Image: "atoll.dev/release:1.36.3"}}}
	rules.Complete(&p, spec.(map[string]any))
	data, err := json.Marshal(document.Lookup(spec, "authentication", "issuers"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data), p
}

func TestAnIssuerGetsDefaults(t *testing.T) {
	got, problems := checkIssuers(t, `[{"url":"https://a.example.com/x","audiences":["k"]},
		{"url":"https://b.example.com","audiences":["k"],
			"claimMappings":{"username":{"claim":"email","prefixPolicy":"NoPrefix"}}},
		{"url":"https://c.example.com","audiences":["k"],"claimMappings":{"username":{"prefix":"c:"}}}]`)
	const want = `[{"audiences":["k"],"claimMappings":{"username":{"claim":"sub","prefix":"https://a.example.com/x#"}},` +
		`"url":"https://a.example.com/x"},` +
		`{"audiences":["k"],"claimMappings":{"username":{"claim":"email","prefixPolicy":"NoPrefix"}},` +
		`"url":"https://b.example.com"},` +
		`{"audiences":["k"],"claimMappings":{"username":{"claim":"sub","prefix":"c:"}},"url":"https://c.example.com"}]`
	if got != want || len(problems) > 0 {
		t.Errorf("issuers %s\nproblems %v", got, problems)
	}
}

func TestIssuersThatAreRefused(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	server.Close()
	certificate, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: server.Certificate().Raw})))
	if err != nil {
		t.Fatal(err)
	}
	username := func(text string) string {
		return `"url":"https://a.example.com","audiences":["k"],"claimMappings":{"username":` + text + `}`
	}
	groups := func(text string) string {
		return `"url":"https://a.example.com","audiences":["k"],"claimMappings":{"groups":` + text + `}`
	}
	const good = `"url":"https://a.example.com","audiences":["k"]`
	// Members of an issuer, and the only field with a problem: field and text.
	for issuer, want := range map[string]string{
		good: "",
		good + `,"certificateAuthority":` + string(certificate):                  "",
		good + `,"certificateAuthority":"nonsense"`:                              "certificateAuthority: certificates in PEM",
		`"audiences":["k"],"claimMappings":{"username":{"prefix":"a:"}}`:         "url: missing",
		`"url":"http://a.example.com","audiences":["k"]`:                         "url: https",
		`"url":"https://","audiences":["k"]`:                                     "url: host",
		`"url":"https://u:p@a.example.com","audiences":["k"]`:                    "url: user",
		`"url":"https://a.example.com?x","audiences":["k"]`:                      "url: query",
		`"url":"https://a.example.com#","audiences":["k"]`:                       "url: fragment",
		`"url":"https://kubernetes.default.svc.cluster.local","audiences":["k"]`: "url: own Service",
		`"url":"https://Kubernetes.Default.svc/","audiences":["k"]`:              "url: own Service",
		`"url":"https://a.example.com"`:                                          "audiences: 1 to 10",
		`"url":"https://a.example.com","audiences":["k","k"]`:                    "audiences[1]: twice",
		good + `},{` + good:                                                  "url: another issuer",
		username(`{"prefix":"system:"}`):                                     "claimMappings.username.prefix: reserved",
		username(`{"prefix":"system:x:"}`):                                   "claimMappings.username.prefix: reserved",
		username(`{"prefix":"s"}`):                                           "claimMappings.username.prefix: reserved",
		username(`{"prefix":"atoll:"}`):                                      "claimMappings.username.prefix: reserved",
		username(`{"prefix":"a b"}`):                                         "claimMappings.username.prefix: space",
		username(`{"prefix":""}`):                                            "claimMappings.username.prefix: missing",
		username(`{"prefixPolicy":"NoPrefix"}`):                              "claimMappings.username.prefixPolicy: email",
		username(`{"claim":"email","prefixPolicy":"NoPrefix","prefix":"a"}`): "claimMappings.username.prefix: NoPrefix",
		username(`{"prefixPolicy":"None"}`):                                  "claimMappings.username.prefixPolicy: ",
		groups(`{"claim":"groups"}`):                                         "claimMappings.groups.prefix: missing",
		groups(`{"claim":"groups","prefix":"system:"}`):                      "claimMappings.groups.prefix: reserved",
		groups(`{"prefix":"a:"}`):                                            "claimMappings.groups.claim: missing",
		good + `,"claimValidationRules":[{"claim":"t","requiredValue":"1"},` +
			`{"claim":"t","requiredValue":"2"}]`: "claimValidationRules[1].claim: twice",
		good + `,"claimValidationRules":[{"claim":"t"}]`: "claimValidationRules[0].requiredValue: empty",
		good + `,"expression":"true"`:                    "expression: ",
	} {
		_, problems := checkIssuers(t, "[{"+issuer+"}]")
		if want == "" {
			if len(problems) > 0 {
				t.Errorf("%s: %v", issuer, problems)
			}
			continue
		}
		field, text, _ := strings.Cut(want, ": ")
		found, others := false, false
		for _, p := range problems {
			isField := strings.HasSuffix(p.Field, "]."+field)
			found, others = found || isField && strings.Contains(p.Message, text), others || !isField
		}
		if !found || others {
			t.Errorf("%s: problems %q, want only %q", issuer, problems, want)
		}
	}
	if _, problems := checkIssuers(t, `[`+strings.Repeat(`{},`, 10)+`{}]`); len(problems) == 0 {
		t.Error("11 issuers are accepted")
	}
	for _, odd := range []string{`{}`, `[1]`, `[{"claimMappings":1}]`, `[{"claimMappings":{"username":[]}}]`, `"x"`} {
		if _, problems := checkIssuers(t, odd); len(problems) == 0 {
			t.Errorf("%s is accepted", odd)
		}
	}
}
