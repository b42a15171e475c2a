package rosa_test

import (
	"fmt"
	"testing"

	"atoll.dev/api/platform"
)

// Operators set the quotas of an account, customers see their own, and a refusal has the numbers. Nobody else reads or
// sets them, and the audit has who did (I10).
func TestQuotasThroughTheAPII10(t *testing.T) {
	a := startAuthorized(t)
	path := "/accounts/" + ownerAccount + "/quotas"
	set := func(who, body string, status int, code string) map[string]any {
		t.Helper()
		return a.want(who, "PATCH", path, `{"limits":{`+body+`}}`, status, code)
	}
	quota := func(answer map[string]any, i int) string {
		items, _ := answer["items"].([]any)
		if len(items) != 4 {
			t.Fatalf("the quotas are %v", answer)
		}
		q, _ := items[i].(map[string]any)
		return fmt.Sprint(q["name"], " ", q["used"], "/", q["limit"])
	}
	is := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	is(quota(set(regionOperator, `"clusters":1,"nodes":4`, 200, ""), 0), "clusters 0/1")
	id := a.make(root, "/clusters", "id", named("shop", ""))
	refused := a.want(root, "POST", "/clusters", `{"name":"two"}`, 403, "quota-exceeded")
	is(fmt.Sprint(refused["quota"]), "map[asked:1 limit:1 name:clusters used:1]")
	is(quota(a.want(root, "GET", "/quotas", "", 200, ""), 0), "clusters 1/1")
	is(quota(a.want(otherRoot, "GET", "/quotas", "", 200, ""), 0), "clusters 0/<nil>")
	a.make(otherRoot, "/clusters", "id", named("two", ""))

	pool := a.make(root, "/nodepools", "id", platform.NodePoolRequest{Name: "p", ClusterID: id})
	a.want(root, "PATCH", "/nodepools/"+pool, `{"spec":{"nodePool":{"replicas":5}}}`, 403, "quota-exceeded")
	a.want(root, "PATCH", "/nodepools/"+pool, `{"spec":{"nodePool":{"replicas":4}}}`, 200, "")
	is(quota(set(regionOperator, `"nodes":1`, 200, ""), 2), "nodes 4/1")
	a.want(root, "PATCH", "/nodepools/"+pool, `{"spec":{"nodePool":{"replicas":3}}}`, 200, "")
	is(quota(set(regionOperator, `"nodes":null`, 200, ""), 2), "nodes 3/<nil>")

	set(root, `"clusters":9`, 403, "not-privileged")
	a.want(root, "GET", path, "", 403, "not-privileged")
	a.want(otherRoot, "GET", path, "", 403, "not-privileged")
	a.want(ann, "GET", "/quotas", "", 403, "access-denied")
	a.want("", "GET", "/quotas", "", 403, "missing-authentication")
	take := a.attach(`permit (principal, action == ROSA::Action::"ListQuotas", resource);`, "user", ann)
	is(quota(a.want(ann, "GET", "/quotas?accountId="+otherAccount, "", 200, ""), 0), "clusters 1/1")
	take()
	set(regionOperator, `"clusters":-1`, 400, "invalid-request")
	set(regionOperator, `"clusters":1000000001`, 400, "invalid-request")
	set(regionOperator, `"clusters":1e30`, 400, "invalid-request")
	set(regionOperator, `"cluster":1`, 400, "invalid-request")
	set(regionOperator, ``, 400, "invalid-request")
	a.want(regionOperator, "PATCH", "/accounts/999999999999/quotas", `{"limits":{"clusters":1}}`, 404, "")
	a.want(regionOperator, "GET", "/accounts/999999999999/quotas", "", 404, "")

	a.await(regionOperator, "all=true", "done clm UpdateAccountQuotas create Quota "+regionOperator,
		"done clm UpdateAccountQuotas update Quota "+regionOperator,
		"denied platform UpdateAccountQuotas Account not-privileged "+root)
	a.await(root, "", "done clm UpdateAccountQuotas create Quota operator")
}
