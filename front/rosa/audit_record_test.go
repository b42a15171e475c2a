package rosa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/access/audit"
)

// records returns the audit records that a principal reads, the oldest first.
func (a *authorized) records(who, query string) (records []audit.Record) {
	a.t.Helper()
	answer := a.want(who, "GET", "/audit?limit=500&after=0&"+query, "", 200, "")
	items, _ := answer["items"].([]any)
	for _, item := range items {
		text, err := json.Marshal(item.(map[string]any)["record"])
		var r audit.Record
		if err = errors.Join(err, json.Unmarshal(text, &r)); err != nil {
			a.t.Fatal(err)
		}
		records = append(records, r)
	}
	return records
}

// line is a record in short.
func line(r audit.Record) string {
	parts := []string{r.Outcome, r.Service, r.Action, r.Change, r.Resource.Kind, r.Code, r.Principal}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

// await returns the audit records that a principal reads, when they have all of these lines.
func (a *authorized) await(who, query string, want ...string) []audit.Record {
	a.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		var lines []string
		records := a.records(who, query)
		for _, r := range records {
			lines = append(lines, line(r))
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(l string) bool { return slices.Contains(lines, l) })
		if len(missing) == 0 {
			return records
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("%s reads no audit record %q, but\n%s", who, missing, strings.Join(lines, "\n"))
		}
	}
}

// Each change of a cluster and of a policy, and each refusal, has a record that says who, what and why,
// once. A customer reads his account's, with what operators did to his clusters, and nothing of others
// (I10).
func TestI10ChangesAndRefusalsAreAudited(t *testing.T) {
	a := startAuthorized(t)
	id := a.make(root, "/clusters", "id", named("shop", ""))
	other := a.make(otherRoot, "/clusters", "id", named("other", ""))
	take := a.attach(`permit (principal, action == ROSA::Action::"DescribeCluster", resource);`, "user", ann)
	a.want(ann, "GET", "/clusters/"+id, "", 200, "")
	a.want(ann, "DELETE", "/clusters/"+id, "", 403, "access-denied")
	a.want(ann, "GET", "/audit", "", 403, "access-denied")
	a.want(root, "GET", "/audit?all=true", "", 403, "")
	a.want(root, "GET", "/audit?account="+otherAccount, "", 400, "invalid-request")
	a.want("", "GET", "/clusters", "", 403, "missing-authentication")
	take()
	a.want(root, "PATCH", "/clusters/"+id, `{"spec":{"displayName":"Shop"}}`, 200, "")
	a.want(regionOperator, "POST", "/authz/policies?accountId="+ownerAccount,
		`{"name":"by-operator","policy":"permit (principal, action, resource);"}`, 201, "")

	records := a.await(root, "",
		"done clm CreateCluster create Cluster "+root, "done clm UpdateCluster update Cluster "+root,
		"done platform CreatePolicy create Policy "+root, "done platform DeletePolicy remove Policy "+root,
		"done platform CreateAttachment create Attachment "+root, "denied platform DeleteCluster Cluster access-denied "+ann,
		"denied platform ListAudit Account access-denied "+ann, "done platform CreatePolicy create Policy operator")
	counts := map[string]int{}
	for _, r := range records {
		counts[r.Service+r.Key]++
		if r.Owner != ownerAccount || r.RequestID == "" || strings.Contains(fmt.Sprint(r), otherAccount) {
			t.Errorf("root reads %+v", r)
		}
		switch line(r) {
		case "done clm CreateCluster create Cluster " + root:
			if r.Resource.ID != id || r.Before != "" || len(r.After) != 64 || r.Reason != "administrator" ||
				r.Route != "/api/v0/clusters" || r.Method != "POST" || r.Proof != "sigv4" || r.Source != "127.0.0.1" {
				t.Errorf("the record of the creation is %+v", r)
			}
		case "done clm UpdateCluster update Cluster " + root:
			created := records[slices.IndexFunc(records, func(r audit.Record) bool { return r.Action == "CreateCluster" })]
			if r.Before != created.After || r.After == r.Before || len(r.After) != 64 {
				t.Errorf("the record of the change is %+v after %+v", r, created)
			}
		case "denied platform DeleteCluster Cluster access-denied " + ann:
			if r.Resource.ID != id || r.Status != 403 || r.Method != "DELETE" {
				t.Errorf("the record of the refusal is %+v", r)
			}
		case "done platform CreatePolicy create Policy operator":
			if !r.Operator || r.Account+r.Source+r.ProofID+r.Reason != "" {
				t.Errorf("a customer reads of an operator %+v", r)
			}
		}
	}
	for key, n := range counts {
		if n != 1 {
			t.Errorf("the record %s is there %d times", key, n)
		}
	}

	all := a.await(regionOperator, "all=true", "done clm CreateCluster create Cluster "+otherRoot,
		"denied platform ListClusters Cluster missing-authentication")
	for _, r := range all {
		if strings.HasPrefix(r.Principal, "system:adapter") {
			t.Errorf("the work of an adapter has a record: %+v", r)
		}
		if r.Principal == regionOperator && r.Source != "127.0.0.1" {
			t.Errorf("an operator reads %+v", r)
		}
	}
	creation := records[slices.IndexFunc(records, func(r audit.Record) bool { return r.Action == "CreateCluster" })]
	for query, want := range map[string]string{
		"principal=" + url.QueryEscape(ann) + "&outcome=denied&action=DeleteCluster": "DeleteCluster",
		"kind=Cluster&resource=" + id + "&action=CreateCluster":                      "CreateCluster",
		"outcome=done&action=CreateCluster":                                          "CreateCluster",
		"to=2020-01-01T00:00:00Z":                                                    "",
		"from=2999-01-01T00:00:00Z":                                                  "",
		"resource=" + other:                                                          "",
		"action=CreateCluster&request=" + creation.RequestID:                         "CreateCluster",
	} {
		got := a.records(root, query)
		if len(got) > 1 || len(got) == 0 && want != "" || len(got) == 1 && got[0].Action != want {
			t.Errorf("?%s selects %+v, want %q", query, got, want)
		}
	}
	// Pages follow each other without a gap.
	var paged int
	for before := ""; ; {
		items, _ := a.want(root, "GET", "/audit?limit=3"+before, "", 200, "")["items"].([]any)
		if paged += len(items); len(items) == 0 {
			break
		}
		before = fmt.Sprintf("&before=%.0f", items[len(items)-1].(map[string]any)["seq"])
	}
	if n := len(a.records(root, "")); paged != n {
		t.Errorf("pages of 3 have %d records, all together %d", paged, n)
	}
	for _, bad := range []string{"limit=0", "limit=501", "before=x", "from=yesterday", "outcome=maybe", "all=perhaps"} {
		a.want(root, "GET", "/audit?"+bad, "", 400, "invalid-request")
	}
}
