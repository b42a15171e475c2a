package rosa_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"atoll.dev/access"
	"atoll.dev/api/platform"
)

const (
	ownerAccount    = "111111111111"
	otherAccount    = "222222222222"
	operatorAccount = "000000000000"
	root            = "arn:aws:iam::111111111111:root"
	otherRoot       = "arn:aws:iam::222222222222:root"
	ann             = "arn:aws:iam::111111111111:user/ann"
	regionOperator  = "arn:aws:iam::000000000000:user/op"
)

// Cedar policies that are attached to a group decide about its members' requests. CLUSTER is the id of
// a cluster with the tag env=dev, OTHER of one with env=prod, POOL and FAR are their node pools.
func TestPoliciesDecideThroughTheAPI(t *testing.T) {
	a := startAuthorized(t)
	dev := a.make(root, "/clusters", "id", map[string]any{"name": "dev", "spec": map[string]any{
		"tags": map[string]string{"env": "dev"}}})
	prod := a.make(root, "/clusters", "id", map[string]any{"name": "prod", "spec": map[string]any{
		"tags": map[string]string{"env": "prod"}}})
	pool := a.make(root, "/nodepools", "id", map[string]any{"cluster_id": dev, "name": "w"})
	far := a.make(root, "/nodepools", "id", map[string]any{"cluster_id": prod, "name": "w"})
	group := a.make(root, "/authz/groups", "groupId", platform.GroupRequest{Name: "team"})
	a.want(root, "PUT", "/authz/groups/"+group+"/members", `{"add":["`+ann+`"]}`, 200, "")
	fill := strings.NewReplacer("CLUSTER", dev, "OTHER", prod, "POOL", pool, "FAR", far, "TEAM", group, "ANN", ann,
		"ACTION::", "ROSA::Action::").Replace
	const (
		all      = `permit (principal, action, resource);`
		describe = `permit (principal, action == ACTION::"DescribeCluster", resource)`
		isDev    = `when {resource.hasTag("env") && resource.getTag("env") == "dev"}`
		shown    = `{"spec":{"displayName":"x"}}`
	)
	type verdicts struct{ allowed, refused int }
	groups := map[string]verdicts{}
	for _, c := range []struct {
		group, policy, method, path, body string
		allowed                           bool
	}{
		{"basic access", ``, "GET", "/clusters/CLUSTER", "", false},
		{"basic access", all, "GET", "/clusters/CLUSTER", "", true},
		{"basic access", `permit (principal == ROSA::Principal::"ANN", action, resource);`,
			"GET", "/clusters/CLUSTER", "", true},
		{"basic access", `permit (principal in ROSA::Group::"TEAM", action, resource);`,
			"GET", "/clusters/CLUSTER", "", true},
		{"basic access", `permit (principal in ROSA::Group::"x", action, resource);`,
			"GET", "/clusters/CLUSTER", "", false},
		{"basic access", `permit (principal == ?principal, action, resource);`, "GET", "/clusters/CLUSTER", "", true},
		{"basic access", `permit (principal in ROSA::Account::"111111111111", action, resource);`,
			"GET", "/clusters", "", true},
		{"basic access", `permit (principal, action in ACTION::"ReadOnly", resource);`,
			"PATCH", "/clusters/CLUSTER", shown, false},

		{"clusters", `permit (principal, action in ACTION::"ClusterAdmin", resource);`,
			"PATCH", "/clusters/CLUSTER", shown, true},
		{"clusters", describe + `;`, "GET", "/clusters/CLUSTER/events", "", true},
		{"clusters", describe + `;`, "DELETE", "/clusters/CLUSTER", "", false},
		{"clusters", `permit (principal, action, resource == ROSA::Cluster::"CLUSTER");`,
			"GET", "/clusters/CLUSTER/statuses", "", true},
		{"clusters", `permit (principal, action, resource == ROSA::Cluster::"CLUSTER");`,
			"GET", "/clusters/OTHER", "", false},
		{"clusters", `permit (principal, action == ACTION::"UpdateCluster", resource);`,
			"POST", "/clusters", `{"name":"new"}`, false},

		{"node pools", `permit (principal, action, resource in ROSA::Cluster::"CLUSTER");`,
			"GET", "/nodepools/POOL", "", true},
		{"node pools", `permit (principal, action, resource in ROSA::Cluster::"CLUSTER");`,
			"GET", "/nodepools/FAR", "", false},
		{"node pools", `permit (principal, action, resource in ROSA::Cluster::"CLUSTER");`, "POST", "/nodepools",
			`{"cluster_id":"OTHER","name":"v"}`, false},
		{"node pools", `permit (principal, action in ACTION::"NodePoolAdmin", resource);`, "PATCH", "/nodepools/POOL",
			`{"spec":{"replicas":1}}`, true},
		{"node pools", `permit (principal, action in ACTION::"NodePoolAdmin", resource);`,
			"PATCH", "/clusters/CLUSTER", shown, false},

		{"credentials", `permit (principal, action in ACTION::"ReadOnly", resource);`,
			"GET", "/clusters/CLUSTER/credentials", "", true},
		{"credentials", `permit (principal, action in ACTION::"ReadOnly", resource);`,
			"POST", "/clusters/CLUSTER/credentials", `{}`, false},
		{"credentials", describe + `;`, "GET", "/clusters/CLUSTER/credentials", "", false},
		{"credentials", `permit (principal, action, resource in ROSA::Cluster::"OTHER");`,
			"POST", "/clusters/CLUSTER/credentials",
			`{}`, false},
		{"credentials", `permit (principal, action, resource in ROSA::Cluster::"OTHER");`, "GET",
			"/clusters/CLUSTER/credentials/POOL", "", false},

		{"tags", describe + isDev + `;`, "GET", "/clusters/CLUSTER", "", true},
		{"tags", describe + isDev + `;`, "GET", "/clusters/OTHER", "", false},
		{"tags", `permit (principal, action == ACTION::"DescribeNodePool", resource) ` + isDev + `;`,
			"GET", "/nodepools/POOL", "", true},
		{"tags", `permit (principal, action == ACTION::"DescribeNodePool", resource) ` + isDev + `;`,
			"GET", "/nodepools/FAR", "", false},
		{"tags", `permit (principal, action == ACTION::"CreateCluster", resource) ` + isDev + `;`, "POST", "/clusters",
			`{"name":"p2","spec":{"tags":{"env":"prod"}}}`, false},
		{"tags", `permit (principal, action == ACTION::"CreateCluster", resource) ` + isDev + `;`, "POST", "/clusters",
			`{"name":"d2","spec":{"tags":{"env":"dev"}}}`, true},
		{"tags", `permit (principal, action in [ACTION::"UpdateCluster", ACTION::"TagCluster"], resource) ` + isDev + `;`, "PATCH",
			"/clusters/CLUSTER", `{"spec":{"tags":{"env":"prod"}}}`, false},
		{"tags", `permit (principal, action == ACTION::"UpdateCluster", resource);`, "PATCH", "/clusters/CLUSTER",
			`{"spec":{"tags":{"env":"dev","more":"x"}}}`, false},

		{"deny", all + `forbid (principal, action == ACTION::"DescribeCluster", resource);`,
			"GET", "/clusters/CLUSTER", "", false},
		{"deny", all + `forbid (principal, action == ACTION::"DeleteCluster", resource);`, "GET", "/clusters/CLUSTER", "", true},
		{"deny", all + `forbid (principal, action == ACTION::"DescribeCluster", resource) ` + isDev + `;`,
			"GET", "/clusters/CLUSTER", "", false},
		{"deny", all + `forbid (principal, action == ACTION::"DescribeCluster", resource) ` + isDev + `;`,
			"GET", "/clusters/OTHER", "", true},
		{"deny", all + `forbid (principal in ROSA::Group::"TEAM", action, resource);`, "GET", "/clusters", "", false},
		{"deny", all + `forbid (principal, action == ACTION::"DeleteCluster", resource in ROSA::Account::"111111111111");`,
			"DELETE", "/clusters/CLUSTER", "", false},
		{"deny", all + `forbid (principal, action == ACTION::"DeleteCluster", resource in ROSA::Account::"111111111111");`,
			"DELETE", "/clusters/CLUSTER?accountId=222222222222", "", false},

		{"conditions", `permit (principal, action, resource) when {context.sourceIp.isLoopback()};`,
			"GET", "/clusters/CLUSTER", "", true},
		{"conditions", `permit (principal, action, resource) when {context.sourceIp.isInRange(ip("10.0.0.0/8"))};`, "GET",
			"/clusters/CLUSTER", "", false},
		{"conditions", `permit (principal, action, resource) when {context.time > datetime("2020-01-01")};`,
			"GET", "/clusters", "", true},
		{"conditions", `permit (principal, action, resource) when {context.region == "moon"};`,
			"GET", "/clusters", "", false},
		{"conditions", `permit (principal, action, resource) when {context.userAgent like "Go-http-client*"};`, "GET",
			"/clusters", "", true},
		{"conditions", `permit (principal, action, resource) when {context has mfa && context.mfa};`,
			"GET", "/clusters", "", false},

		{"complex", describe + isDev + `unless {context.sourceIp.isInRange(ip("10.0.0.0/8"))};`,
			"GET", "/clusters/CLUSTER", "", true},
		{"complex", `permit (principal in ROSA::Group::"TEAM", action in [ACTION::"ReadOnly", ACTION::"NodePoolAdmin"], resource);` +
			`forbid (principal, action, resource in ROSA::Cluster::"OTHER");`, "GET", "/nodepools/POOL", "", true},
		{"complex", `permit (principal in ROSA::Group::"TEAM", action in [ACTION::"ReadOnly", ACTION::"NodePoolAdmin"], resource);` +
			`forbid (principal, action, resource in ROSA::Cluster::"OTHER");`, "GET", "/nodepools/FAR", "", false},
		{"complex", `permit (principal, action, resource is ROSA::NodePool in ROSA::Cluster::"CLUSTER");`,
			"GET", "/clusters/CLUSTER",
			"", false},
		{"complex", `permit (principal, action, resource) when {resource is ROSA::Cluster};`,
			"GET", "/clusters/CLUSTER", "", true},
	} {
		take := func() {}
		if c.policy != "" {
			take = a.attach(fill(c.policy), "group", group)
		}
		status, answer := a.call(ann, c.method, fill(c.path), fill(c.body))
		if (status != http.StatusForbidden) != c.allowed || status >= 500 || !c.allowed && answer["code"] != "access-denied" {
			t.Errorf("%s: %s\n%s %s: %d %v", c.group, c.policy, c.method, c.path, status, answer)
		}
		take()
		n := groups[c.group]
		if c.allowed {
			n.allowed++
		} else {
			n.refused++
		}
		groups[c.group] = n
	}
	for _, group := range []string{"basic access", "clusters", "node pools", "credentials", "tags", "deny", "conditions",
		"complex"} {
		if n := groups[group]; n.allowed+n.refused < 4 || n.allowed == 0 || n.refused == 0 {
			t.Errorf("the group %s has %+v", group, n)
		}
	}

	// A list has what its reader may describe, and its total counts that.
	take := a.attach(`permit (principal, action in [ROSA::Action::"ListClusters", ROSA::Action::"ListNodePools"],
			resource);
		permit (principal, action in ROSA::Action::"ReadOnly", resource in ROSA::Cluster::"`+dev+`");`, "user", ann)
	for path, id := range map[string]string{"/clusters": dev, "/nodepools": pool} {
		for _, page := range []string{"", "?limit=1", "?limit=1&offset=1"} {
			list := a.want(ann, "GET", path+page, "", 200, "")
			items, _ := list["items"].([]any)
			isFirst := page != "?limit=1&offset=1"
			if list["total"] != 1.0 || isFirst != (len(items) == 1) || isFirst && items[0].(map[string]any)["id"] != id {
				t.Errorf("%s%s: %v", path, page, list)
			}
		}
	}
	take()
}

// Every route but whoami refuses each caller who may not use it, and the refusal shows nothing of
// another account.
func TestEveryRouteRefusesI10(t *testing.T) {
	a := startAuthorized(t)
	secret := a.make(root, "/clusters", "id", map[string]any{"name": "secret"})
	group := a.make(root, "/authz/groups", "groupId", platform.GroupRequest{Name: "secret-group"})
	written := a.make(root, "/authz/policies", "policyId", platform.PolicyRequest{Name: "secret-policy",
		Policy: `permit (principal, action, resource);`})
	attached := a.make(root, "/authz/attachments", "attachmentId", platform.AttachmentRequest{PolicyID: written,
		TargetType: "group", TargetID: group})
	limited := a.make(root, "/authz/policies", "policyId", platform.PolicyRequest{Name: "limited",
		Policy: `permit (principal, action, resource == ROSA::Cluster::"00000000-0000-0000-0000-000000000000");`})
	bob := "arn:aws:iam::111111111111:user/bob"
	a.make(root, "/authz/attachments", "attachmentId", platform.AttachmentRequest{PolicyID: limited, TargetType: "user",
		TargetID: bob})
	doc, err := openapi3.NewLoader().LoadFromData(platform.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths.Map() {
		id := secret // of what the path names
		for part, of := range map[string]string{"/policies/": written, "/groups/": group, "/attachments/": attached,
			"/accounts/": ownerAccount} {
			if strings.Contains(path, part) {
				id = of
			}
		}
		path = strings.TrimPrefix(strings.NewReplacer("{id}", id, "{cid}", secret, "{arn}",
			url.PathEscape(root)).Replace(path), "/api/v0")
		if slices.Contains([]string{"/live", "/ready"}, path) {
			continue
		}
		for method := range item.Operations() {
			if path == "/whoami" {
				a.want("", method, path, "", 403, "missing-authentication")
				a.want("arn:aws:iam::333333333333:user/eve", method, path, "", 200, "")
				continue
			}
			const body = `{"name":"x","cluster_id":"y"}`
			a.want("", method, path, body, 403, "missing-authentication")
			a.want("arn:aws:iam::333333333333:user/eve", method, path, body, 403, "account-not-provisioned")
			a.want("arn:aws:iam::333333333333:root", method, path, body, 403, "account-not-provisioned")
			a.want(ann, method, path, body, 403, "access-denied")
			a.want(bob, method, path, body, 403, "access-denied")
			status, answer := a.call(otherRoot, method, path, `{"name":"x","cluster_id":"`+secret+`"}`)
			text := fmt.Sprint(answer)
			if strings.Contains(path, id) && id != ownerAccount {
				a.wantAsMissing(otherRoot, method, path, id, secret)
			}
			for _, shown := range []string{"secret-", `"secret"`, "user/bob"} {
				if strings.Contains(text, shown) {
					t.Errorf("%s %s shows another account's %s: %d %s", method, path, shown, status, text)
				}
			}
			if strings.Contains(path, id) && method != "GET" && status < 300 {
				t.Errorf("%s %s of another account: %d %s", method, path, status, text)
			}
			if strings.HasPrefix(path, "/authz/") {
				a.want(otherRoot, method, path+"?accountId="+ownerAccount, body, 403, "not-privileged")
				a.want(otherRoot, method, path+"?accountId=", body, 403, "not-privileged")
				a.want(otherRoot, method, path+"?accountId="+otherAccount+"&accountId="+ownerAccount, body, 403, "not-privileged")
			}
		}
	}
	a.want(root, "GET", "/clusters/"+secret, "", 200, "")
	a.want(root, "GET", "/authz/policies/"+written, "", 200, "")
}

// An operator provisions an account, its root makes the first administrator, and the account ends.
func TestAnAccountIsCreatedAndDeleted(t *testing.T) {
	a := startAuthorized(t)
	const account = "444444444444"
	newRoot, admin := "arn:aws:iam::"+account+":root", "arn:aws:iam::"+account+":user/admin"
	a.want(newRoot, "POST", "/authz/admins", `{"principalArn":"`+admin+`"}`, 403, "account-not-provisioned")
	a.want(root, "POST", "/accounts", `{"accountId":"`+account+`"}`, 403, "not-privileged")
	a.want(regionOperator, "POST", "/accounts", `{"accountId":"`+account+`"}`, 201, "")
	a.want(regionOperator, "POST", "/accounts", `{"accountId":"`+account+`"}`, 409, "account-exists")
	a.want(regionOperator, "POST", "/accounts", `{"accountId":"4"}`, 400, "invalid-request")
	a.want(admin, "GET", "/clusters", "", 403, "access-denied")
	a.want(newRoot, "POST", "/authz/admins", `{"principalArn":"`+ann+`"}`, 400, "invalid-request")
	a.want(newRoot, "POST", "/authz/admins", `{"principalArn":"`+admin+`"}`, 201, "")
	a.want(newRoot, "POST", "/authz/admins", `{"principalArn":"`+admin+`"}`, 409, "already-exists")
	a.want(admin, "GET", "/clusters", "", 200, "")
	a.want(admin, "GET", "/management_clusters", "", 403, "not-privileged")
	if me := a.want(admin, "GET", "/whoami", "", 200, ""); me["admin"] != true || me["provisioned"] != true {
		t.Errorf("whoami: %v", me)
	}
	a.want(admin, "DELETE", "/authz/admins/"+url.PathEscape(admin), "", 204, "")
	a.want(admin, "GET", "/clusters", "", 403, "access-denied")

	// An operator acts for an account by accountId.
	at := "?accountId=" + account
	a.want(regionOperator, "POST", "/authz/attachments"+at,
		`{"policyId":"ReadOnly","targetType":"user","targetId":"`+admin+`"}`,
		201, "")
	a.want(admin, "GET", "/clusters", "", 200, "")
	a.want(admin, "POST", "/clusters", `{"name":"x"}`, 403, "access-denied")
	decision := a.want(regionOperator, "POST", "/authz/check"+at, `{"principal":"`+admin+
		`","action":"ListClusters","resource":"*"}`, 200, "")
	if decision["decision"] != "ALLOW" || fmt.Sprint(decision["policies"]) != "[ReadOnly]" {
		t.Errorf("check: %v", decision)
	}
	decision = a.want(regionOperator, "POST", "/authz/check"+at, `{"principal":"`+newRoot+
		`","action":"CreateWork","resource":"*"}`, 200, "")
	if decision["decision"] != "DENY" {
		t.Errorf("check of an operator's action: %v", decision)
	}
	// What is no account is not every account.
	for _, wrong := range []string{"", "4", "%20", otherAccount + "0", otherAccount + "&accountId=" + account} {
		for _, path := range []string{"policies", "groups", "attachments", "admins"} {
			a.want(regionOperator, "GET", "/authz/"+path+"?accountId="+wrong, "", 400, "invalid-request")
		}
	}
	_, _, policies := a.directory.Policies(t.Context(), "", access.Window{Limit: 1})
	_, _, groups := a.directory.Groups(t.Context(), "", access.Window{Limit: 1})
	_, _, attachments := a.directory.Attachments(t.Context(), "", access.Window{Limit: 1})
	_, admins := a.directory.Admins(t.Context(), "")
	for i, err := range []error{policies, groups, attachments, admins} {
		if !errors.Is(err, access.ErrInvalid) {
			t.Errorf("list %d of the empty account: %v", i, err)
		}
	}
	a.want(regionOperator, "DELETE", "/accounts/"+operatorAccount, "", 409, "account-in-use")
	a.want(regionOperator, "DELETE", "/accounts/"+account, "", 204, "")
	a.want(admin, "GET", "/clusters", "", 403, "account-not-provisioned")
	a.want(regionOperator, "POST", "/accounts", `{"accountId":"`+account+`"}`, 201, "")
	a.want(admin, "GET", "/clusters", "", 403, "access-denied") // its old policies are gone
}

// A privileged account owned first administrator is made follows its policies from then on.
func TestAPrivilegedAccountWithAdministratorsFollowsPolicies(t *testing.T) {
	a := startAuthorized(t)
	admin, second := "arn:aws:iam::000000000000:user/admin", "arn:aws:iam::000000000000:user/second"
	a.want(regionOperator, "GET", "/accounts", "", 200, "")
	a.want(regionOperator, "POST", "/authz/admins", `{"principalArn":"`+admin+`"}`, 201, "")
	a.want(regionOperator, "GET", "/accounts", "", 403, "access-denied")
	a.want(admin, "GET", "/accounts", "", 200, "")
	a.want(admin, "POST", "/authz/attachments",
		`{"policyId":"Operator","targetType":"user","targetId":"`+regionOperator+`"}`, 201, "")
	a.want(regionOperator, "GET", "/accounts", "", 200, "")
	const wanted = `{"accountId":"555555555555","privileged":true}`
	a.want(regionOperator, "POST", "/accounts", wanted, 403, "access-denied") // Operator makes no operators
	a.want(regionOperator, "GET", "/accounts/555555555555", "", 404, "")
	a.want(regionOperator, "POST", "/accounts", `{"accountId":"666666666666"}`, 201, "")
	a.want(admin, "POST", "/accounts", wanted, 201, "")
	a.want(regionOperator, "POST", "/clusters", `{"name":"x"}`, 403, "access-denied")
	a.want(admin, "DELETE", "/authz/admins/"+url.PathEscape(admin), "", 409, "last-admin")
	a.want(admin, "POST", "/authz/admins", `{"principalArn":"`+second+`"}`, 201, "")
	a.want(admin, "DELETE", "/authz/admins/"+url.PathEscape(admin), "", 204, "")
	a.want(admin, "GET", "/accounts", "", 403, "access-denied")
}

// wantAsMissing checks that a caller gets the same answers about what another account has, by its id and the id of its
// cluster, as about ids that nothing has.
func (a *authorized) wantAsMissing(who, method, path, id, cluster string) {
	a.t.Helper()
	const missing = "ffffffff-0000-4000-8000-000000000000"
	rename := strings.NewReplacer(id, missing, cluster, missing).Replace
	for _, body := range []string{`{"name":"x","cluster_id":"` + cluster + `"}`, `{}`} {
		status, answer := a.call(who, method, path, body)
		missingStatus, missingAnswer := a.call(who, method, rename(path), rename(body))
		if text := rename(fmt.Sprint(answer)); status != missingStatus || text != fmt.Sprint(missingAnswer) {
			a.t.Errorf("%s %s %s of another account: %d %s, of nobody: %d %v", method, path, body, status, text, missingStatus,
				missingAnswer)
		}
	}
}
