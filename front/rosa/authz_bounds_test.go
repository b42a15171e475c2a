package rosa_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/internal/quick"
)

// Statements bound the policies of an account as attachments multiply them, and those that reach one
// principal, whichever change exceeds a bound.
func TestStatementsAreBounded(t *testing.T) {
	quick.Slow(t, "writes policies up to the bounds of an account")
	a := startAuthorized(t)
	text := func(statements int) string {
		return strings.Repeat(`permit (principal, action, resource);`, statements)
	}
	write := func(name string, statements int) string {
		return a.make(root, "/authz/policies", "policyId", platform.PolicyRequest{Name: name, Policy: text(statements)})
	}
	attach := func(id, kind, target string, status int, code string) {
		t.Helper()
		body, err := json.Marshal(platform.AttachmentRequest{PolicyID: id, TargetID: target,
			TargetType: platform.AttachmentRequestTargetType(kind)})
		if err != nil {
			t.Fatal(err)
		}
		a.want(root, "POST", "/authz/attachments", string(body), status, code)
	}
	group := a.make(root, "/authz/groups", "groupId", platform.GroupRequest{Name: "team"})
	var full []string
	for i := range 9 {
		full = append(full, write(fmt.Sprint("full", i), 50))
		attach(full[i], "user", ann, 201, "")
	}
	grows, one := write("grows", 49), write("one", 1)
	attach(grows, "user", ann, 201, "") // 499
	attach(one, "group", group, 201, "")
	attach("ReadOnly", "group", group, 201, "")

	members := "/authz/groups/" + group + "/members"
	a.want(root, "PUT", members, `{"add":["`+ann+`"]}`, 409, "too-many")
	a.want(root, "GET", "/authz/policies/"+one, "", 200, "")
	if got := a.want(root, "GET", members, "", 200, ""); got["total"] != 0.0 {
		t.Errorf("members after the refusal: %v", got)
	}
	attach(one, "user", ann, 201, "") // 500
	attach("ReadOnly", "user", ann, 409, "too-many")
	changed, err := json.Marshal(platform.PolicyRequest{Name: "grows", Policy: text(50)})
	if err != nil {
		t.Fatal(err)
	}
	a.want(root, "PUT", "/authz/policies/"+grows, string(changed), 409, "too-many")

	// 502 statements are attached; 389 attachments of 50 make 19,952.
	for i := range 389 {
		attach(full[0], "user", fmt.Sprintf("arn:aws:iam::%s:user/u%d", ownerAccount, i), 201, "")
	}
	attach(full[0], "user", "arn:aws:iam::"+ownerAccount+":user/last", 409, "too-many")
	attach(grows, "user", "arn:aws:iam::"+ownerAccount+":user/last", 409, "too-many")
	attach(one, "user", "arn:aws:iam::"+ownerAccount+":user/last", 201, "")
}
