package arm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apiclm "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/front/arm"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// authBody returns the body of a PUT of an external authentication; more are further members of its properties.
func authBody(url, more string) string {
	return fmt.Sprintf(`{"properties":{"issuer":{"url":%q,"audiences":["kubectl","web"]},"claim":{"mappings":{"username":`+
		`{"claim":"sub","prefix":"sso:"},"groups":{"claim":"groups","prefix":"sso:"}},"validationRules":[{"requiredClaim":`+
		`{"claim":"tid","requiredValue":"t"}}]}%s}}`, url, more)
}

// issuersOf returns the issuers of tokens that the Cluster of demo trusts at the lifecycle manager.
func (w *world) issuersOf(t *testing.T) (r clmclient.Resource, issuers []cluster.Issuer) {
	t.Helper()
	r = w.clusterOf(t, "demo")
	var spec struct {
		Authentication struct{ Issuers []cluster.Issuer }
	}
	if err := json.Unmarshal(r.Spec, &spec); err != nil {
		t.Fatal(err)
	}
	return r, spec.Authentication.Issuers
}

func (w *world) testExternalAuths(t *testing.T) {
	const first, second, own = "https://login.example/t", "https://login.example/u", "https://sso.example"
	path, list := demo+"/externalAuths/Entra", demo+"/externalAuths"
	t.Run("an external authentication that the region cannot carry out is refused with its target", func(t *testing.T) {
		w.do(call{method: "PUT", path: path, body: `{"properties":{"issuer":{"url":"http://x"}}}`}).want(t, 400,
			`"target":"properties.issuer.url"`, `"target":"properties.issuer.audiences"`, `"target":"properties.claim"`)
		replaced := func(old, with string) string { return strings.Replace(authBody(first, ""), old, with, 1) }
		for body, target := range map[string]string{
			authBody(first, `,"clients":[{"clientId":"kubectl"}]`):        "clients",
			replaced(`"groups","prefix":"sso:"`, `"groups"`):              "claim.mappings.groups.prefix",
			replaced(`"sub","prefix":"sso:"`, `"sub","prefix":"system:"`): "claim.mappings.username.prefix",
			replaced(`"sso:"}`, `"sso:","prefixPolicy":"NoPrefix"}`):      "claim.mappings.username.prefix",
			replaced(`,"prefix":"sso:"}`, `,"prefixPolicy":"NoPrefix"}`):  "claim.mappings.username.prefixPolicy",
			replaced(`,"prefix":"sso:"}`, `,"prefixPolicy":"Prefix"}`):    "claim.mappings.username.prefix",
			replaced(`["kubectl","web"]`, `["web","web"]`):                "issuer.audiences[1]",
			replaced(`["kubectl","web"]`, `[1]`):                          "issuer.audiences",
			replaced(`"audiences"`, `"ca":"x","audiences"`):               "issuer.ca",
			replaced(first, "https://kubernetes.default.svc"):             "issuer.url",
			replaced(`"requiredValue":"t"`, `"requiredValue":""`): "claim.validationRules[0].requiredClaim." +
				"requiredValue",
			replaced(`[{"requiredClaim"`, `[{"type":"CEL","requiredClaim"`):         "claim.validationRules[0].type",
			replaced(`{"requiredClaim":{"claim":"tid","requiredValue":"t"}}`, `{}`): "claim.validationRules[0].requiredClaim",
		} {
			w.do(call{method: "PUT", path: path, body: body}).want(t, 400, `"target":"properties.`+target+`"`)
		}
		w.do(call{method: "GET", path: path}).want(t, 404, "ResourceNotFound", "externalAuths/demo/Entra")
		w.do(call{method: "DELETE", path: path}).want(t, 204)
		absent := strings.Replace(path, "demo", "absent", 1)
		w.do(call{method: "PUT", path: absent, body: authBody(first, "")}).want(t, 404, "ParentResourceNotFound")
		w.do(call{method: "GET", path: absent}).want(t, 404, "ParentResourceNotFound")
		w.do(call{method: "GET", path: strings.TrimSuffix(absent, "/Entra")}).want(t, 404, "ParentResourceNotFound")
		w.do(call{method: "PUT", path: list + "/1x", body: authBody(first, "")}).want(t, 400, "InvalidResourceName")
	})
	t.Run("an external authentication is an issuer of the Cluster", func(t *testing.T) {
		w.changeIssuers(t, own) // by the Platform API
		made := w.do(call{method: "PUT", path: path, body: authBody(first, "")}).want(t, 201,
			`"provisioningState":"Accepted"`, `"prefixPolicy":"Prefix"`, `"type":"RequiredClaim"`)
		if strings.Contains(made.raw, `"location"`) || made.header.Get("Location") != "" {
			t.Errorf("%s %v", made.raw, made.header)
		}
		w.succeed(t, made)
		_, issuers := w.issuersOf(t)
		if len(issuers) != 2 || issuers[0].URL != own || issuers[1].URL != first ||
			issuers[1].ClaimMappings.Username.Prefix != "sso:" || issuers[1].ClaimValidationRules[0].Claim != "tid" {
			t.Errorf("the Cluster trusts %+v", issuers)
		}
		w.do(call{method: "GET", path: path}).want(t, 200, `"provisioningState":"Succeeded"`, `"name":"Entra"`,
			`"status":{"conditions":[{"type":"Available","status":"True"`,
			`"type":"Microsoft.RedHatOpenShift/hcpOpenShiftClusters/externalAuths"`)
		w.do(call{method: "GET", path: list, version: oldest}).want(t, 200, `"id":"`+path+`"`,
			`"condition":{"type":"Available","status":"True"`)
		w.do(call{method: "PUT", path: list + "/other", body: authBody(second, "")}).want(t, 400, `"target":"name"`,
			"Only one external auth is allowed per cluster.")
		w.do(call{method: "GET", path: list + "/other"}).want(t, 404, "ResourceNotFound")
		w.do(call{method: "DELETE", path: list + "/other"}).want(t, 204)
		changed := w.do(call{mode: arm.Strict, method: "PATCH", path: strings.ToLower(path), body: `{"properties":{` +
			`"issuer":{"url":"` + second + `"}}}`}).want(t, 202)
		w.succeed(t, changed)
		if _, issuers = w.issuersOf(t); len(issuers) != 2 || issuers[1].URL != second {
			t.Errorf("after the change of its URL the Cluster trusts %+v", issuers)
		}
		w.succeed(t, w.do(call{method: "PATCH", path: demo, body: `{"tags":{"auth":"1"}}`}).want(t, 202))
		if _, issuers = w.issuersOf(t); len(issuers) != 2 {
			t.Errorf("after a change of the cluster it trusts %+v", issuers)
		}
	})
	t.Run("the condition of an external authentication names what its control plane lacks", func(t *testing.T) {
		made := w.clusterOf(t, "demo")
		report := func(degraded string) {
			w.pilot.Lock()
			defer w.pilot.Unlock()
			w.report(t.Context(), "clusters", made, "hosted-cluster", `{"target_cluster":"management-01","degraded":"`+
				degraded+`","endpoint":{"host":"127.0.0.1","port":30001},"version":"1.36.3"}`)
		}
		report("the keys of the issuer " + second + " cannot be read")
		w.do(call{method: "GET", path: path}).want(t, 200, `"type":"Degraded","status":"True"`, "IssuerUnreachable")
		report("")
		w.changeIssuers(t, own)
		w.do(call{method: "GET", path: path}).want(t, 200, `"type":"Available","status":"False"`, "Distrusted")
		w.testConditionWithoutPlane(t, path, func() { w.changeIssuers(t, own, second) })
		w.succeed(t, w.do(call{method: "PUT", path: path, body: authBody(second, "")}).want(t, 200))
		w.do(call{method: "GET", path: path}).want(t, 200, `"type":"Available","status":"True"`)
	})
	t.Run("a deletion ends the trust and refuses a write on its way", func(t *testing.T) {
		before, _ := w.issuersOf(t)
		removed := w.do(call{method: "DELETE", path: path}).want(t, 202)
		w.succeed(t, removed)
		w.do(call{method: "GET", path: removed.header.Get("Location"), version: "-"}).want(t, 204)
		w.do(call{method: "GET", path: list}).want(t, 200, `{"value":[]}`)
		after, issuers := w.issuersOf(t)
		if len(issuers) != 1 || issuers[0].URL != own {
			t.Errorf("the Cluster trusts %+v", issuers)
		}
		// The issuer is absent already, and the deletion changes the Cluster nevertheless.
		w.succeed(t, w.do(call{method: "PUT", path: path, body: authBody(first, "")}).want(t, 201))
		w.changeIssuers(t, own)
		distrusted, _ := w.issuersOf(t)
		w.succeed(t, w.do(call{method: "DELETE", path: path}).want(t, 202))
		last, _ := w.issuersOf(t)
		if after.Generation <= before.Generation || last.Generation <= distrusted.Generation {
			t.Errorf("generations %d, %d; %d, %d", before.Generation, after.Generation, distrusted.Generation,
				last.Generation)
		}
		w.changeIssuers(t)
	})
	t.Run("the external authentication of a deleted cluster is deleted", func(t *testing.T) {
		for _, by := range []string{"arm", "platform"} {
			parent := strings.Replace(demo, "demo", "auth"+by, 1)
			w.succeed(t, w.do(call{method: "PUT", path: parent, body: clusterBody()}).want(t, 201))
			w.succeed(t, w.do(call{method: "PUT", path: parent + "/externalAuths/entra", body: authBody(first, "")}).
				want(t, 201))
			if by == "arm" {
				w.succeed(t, w.do(call{method: "DELETE", path: parent}).want(t, 202))
			} else if _, err := w.front.Delete(t.Context(), "clusters", w.clusterOf(t, "auth"+by).ID, ""); err != nil {
				t.Fatal(err)
			}
			testsite.Eventually(t, "no document is left", func() (err error) {
				page, err := w.store.List(t.Context(), store.Query{Kind: "ArmExternalAuth"})
				if err == nil && len(page.Documents) > 0 {
					err = errors.New(page.Documents[0].Name)
				}
				return err
			})
		}
	})
}

// testConditionWithoutPlane checks the condition of an external authentication while its control plane does not have a
// change of the cluster, and while it does not serve.
func (w *world) testConditionWithoutPlane(t *testing.T, path string, change func()) {
	t.Helper()
	w.pilot.Lock()
	defer w.pilot.Unlock()
	change()
	w.do(call{method: "GET", path: path}).want(t, 200, `"type":"Progressing","status":"True"`, `"reason":"Updating"`)
	made := w.clusterOf(t, "demo")
	if _, err := w.system.Report(t.Context(), "clusters", made.ID, apiclm.AdapterStatusCreate{Adapter: "hosted-cluster",
		Conditions: []apiclm.ReportedCondition{{Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"},
			{Type: "Available", Status: "False", Reason: new("Restarting")}},
		ObservedGeneration: made.Generation, ObservedTime: time.Now(),
		Data: json.RawMessage(`{"target_cluster":"management-01"}`)}); err != nil {
		t.Error(err)
	}
	w.do(call{method: "GET", path: path}).want(t, 200, `"type":"Available","status":"False"`, `"reason":"Restarting"`)
}

// changeIssuers makes issuers those of the Cluster of demo, as the Platform API does.
func (w *world) changeIssuers(t *testing.T, urls ...string) {
	t.Helper()
	list := []any{}
	for _, url := range urls {
		list = append(list, map[string]any{"url": url, "audiences": []string{"a"}, "claimMappings": map[string]any{
			"username": map[string]any{"claim": "sub", "prefix": "own:"}}})
	}
	// Reports on the Cluster change its entity tag, too.
	testsite.Eventually(t, "the issuers are changed", func() error {
		r := w.clusterOf(t, "demo")
		var spec map[string]any
		if err := json.Unmarshal(r.Spec, &spec); err != nil {
			return err
		}
		spec["authentication"] = map[string]any{"issuers": list}
		body, err := json.Marshal(map[string]any{"spec": spec})
		if err == nil {
			ctx := remote.WithActor(clmclient.WithTenant(t.Context(), cluster.Account(r.Tenancy["account"])),
				remote.Actor{Principal: "ann", Account: r.Tenancy["account"]})
			_, err = w.front.Replace(ctx, "clusters", r.ID, body, r.ETag)
		}
		return err
	})
}
