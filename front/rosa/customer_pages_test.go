package rosa_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiclm "atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/clmclient"
)

// Pages at any offset lose and repeat no item.
func TestPagesLoseNothing(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	var ids []string
	for i := range 7 {
		c, err := p.CreateCluster(ctx, named(fmt.Sprintf("c%d", i), ""))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ID)
	}
	if _, err := l.as(neighbour).CreateCluster(ctx, named("theirs", "")); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[3:5] {
		l.up(id)
	}
	list := func(query string) platform.ClusterList {
		t.Helper()
		var found platform.ClusterList
		if status := l.get(t, "/api/v0/clusters"+query, &found); status != 200 {
			t.Fatalf("%s: %d", query, status)
		}
		return found
	}
	for _, c := range []struct{ limit, offset int }{{3, 0}, {3, 1}, {3, 2}, {2, 5}, {100, 0}, {1, 6}, {5, 7}, {5, 300},
		{100, 3}} {
		got := list(fmt.Sprintf("?limit=%d&offset=%d", c.limit, c.offset))
		wanted := ids[min(c.offset, 7):min(c.offset+c.limit, 7)]
		if got.Total != 7 || got.Limit != c.limit || got.Offset != c.offset || len(got.Items) != len(wanted) {
			t.Errorf("limit %d, offset %d: %d items of %d", c.limit, c.offset, len(got.Items), got.Total)
			continue
		}
		for i, item := range got.Items {
			if item.ID != wanted[i] || item.ResourceVersion == "0" {
				t.Errorf("limit %d, offset %d: item %d is %s", c.limit, c.offset, i, item.Name)
			}
		}
	}
	if got := list("?status=Ready&limit=1&offset=1"); got.Total != 2 || len(got.Items) != 1 ||
		got.Items[0].ID != ids[4] {
		t.Errorf("the second that is Ready: %+v", got)
	}
	if got := list("?status=Deleting"); got.Total != 0 || got.Items == nil || got.Limit != 50 {
		t.Errorf("those being deleted: %+v", got)
	}
	if got := list("?name=c5"); got.Total != 1 || got.Items[0].ID != ids[5] {
		t.Errorf("by name: %+v", got)
	}
	if all, err := p.Clusters(ctx, client.ClusterQuery{Phase: platform.ClusterPhaseWaitingForPlacement}); err != nil ||
		len(all) != 5 {
		t.Errorf("waiting: %d, %v", len(all), err)
	}
	for query, code := range map[string]string{
		"?limit=0": "CLUSTERS-MGMT-LIST-001", "?limit=101": "CLUSTERS-MGMT-LIST-001",
		"?offset=-1": "CLUSTERS-MGMT-LIST-001",
		"?limit=x":   "CLUSTERS-MGMT-LIST-001", "?status=Happy": "CLUSTERS-MGMT-LIST-001",
		"?watch=perhaps": "CLUSTERS-MGMT-LIST-001",
	} {
		var e platform.Error
		if status := l.get(t, "/api/v0/clusters"+query, &e); status != 400 || e.Code != code {
			t.Errorf("%s: %d %+v", query, status, e)
		}
	}
}

// A page may span two pages of the lifecycle manager, or begin after its first.
func TestPagesAcrossPagesOfTheLifecycleManager(t *testing.T) {
	l := startLifecycle(t)
	tenant := clmclient.WithTenant(t.Context(), operator.Account)
	var ids []string
	for i := range 120 {
		r, err := l.front.Create(tenant, "clusters", apiclm.ResourceCreate{Kind: "Cluster", Name: fmt.Sprintf("c%d", i),
			Spec: json.RawMessage(`{}`)}, "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.ID)
	}
	for _, c := range []struct{ limit, offset int }{{50, 75}, {100, 10}, {2, 99}, {10, 100}, {50, 110}, {1, 120}} {
		for _, filter := range []string{"", "&status=WaitingForPlacement"} {
			var got platform.ClusterList
			if status := l.get(t, fmt.Sprintf("/api/v0/clusters?limit=%d&offset=%d%s", c.limit, c.offset, filter),
				&got); status != 200 {
				t.Fatalf("%+v%s: %d", c, filter, status)
			}
			var found []string
			for _, item := range got.Items {
				found = append(found, item.ID)
			}
			if wanted := ids[c.offset:min(c.offset+c.limit, len(ids))]; got.Total != len(ids) ||
				!slices.Equal(found, wanted) {
				t.Errorf("%+v%s: %d of %d, want %d", c, filter, len(found), got.Total, len(wanted))
			}
		}
	}
}

// A client that knows only the contract creates, changes and deletes a cluster.
func TestAClientOfTheContractAloneManagesACluster(t *testing.T) {
	l := startLifecycle(t)
	body, status := l.curl(t, "POST", "/prod/api/v0/clusters",
		`{"name":"demo","target_project_id":"p1","spec":{"aws":{"region":"us-east-1","vpcId":"vpc-1"}}}`,
		"Idempotency-Key: k1")
	var made platform.Cluster
	if err := json.Unmarshal(body, &made); err != nil || status != 201 || made.Spec.AWS["vpcId"] != "vpc-1" {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	again, status := l.curl(t, "POST", "/prod/api/v0/clusters",
		`{"name":"demo","target_project_id":"p1","spec":{"aws":{"region":"us-east-1","vpcId":"vpc-1"}}}`,
		"Idempotency-Key: k1")
	if status != 201 || !strings.Contains(string(again), made.ID) {
		t.Errorf("the same once more: %d %s", status, again)
	}
	other, status := l.curl(t, "POST", "/prod/api/v0/clusters", `{"name":"another"}`, "Idempotency-Key: k1")
	if status != 422 || !strings.Contains(string(other), "CLUSTERS-MGMT-CREATE-006") {
		t.Errorf("another with the same key: %d %s", status, other)
	}
	path := "/prod/api/v0/clusters/" + made.ID
	for _, c := range []struct {
		method, path, body string
		status             int
		contains           string
	}{
		{"POST", "/prod/api/v0/clusters", `{"name":"other"}`, 201, "other"},
		{"POST", "/api/v0/clusters", `{"name":"demo"}`, 409, "CLUSTERS-MGMT-CREATE-003"},
		{"POST", "/api/v0/clusters", `{"name":`, 400, "CLUSTERS-MGMT-CREATE-001"},
		{"POST", "/api/v0/clusters", `[]`, 400, "CLUSTERS-MGMT-CREATE-001"},
		{"POST", "/api/v0/clusters", `{"kind":"NodePool","name":"x"}`, 422, `"field":"kind"`},
		{"PUT", path, `{"spec":{"displayName":"new"}}`, 200, `"displayName":"new"`},
		{"PUT", path, `{}`, 422, `"field":"spec"`},
		{"PATCH", path, `{"spec":{"displayName":null}}`, 200, `"generation":3`},
		{"GET", path + "/statuses", "", 200, `"controller_statuses":[]`},
		{"GET", path + "/events", "", 200, `"stage":"Accepted"`},
		{"GET", path + "/credentials", "", 200, `"items":[]`},
		{"POST", path + "/credentials", `{"expiration_seconds":5}`, 422, `"field":"expiration_seconds"`},
		{"GET", "/api/v0/nodepools?clusterId=" + made.ID, "", 200, `"total":0`},
		{"GET", "/api/v0/nodepools?clusterId=nonsense", "", 404, "NODEPOOLS-MGMT-LIST-002"},
		{"GET", "/api/v0/clusters/nonsense", "", 404, "CLUSTERS-MGMT-GET-002"},
		{"GET", "/api/v0/clusters/%00", "", 404, "CLUSTERS-MGMT-GET-002"},
		{"GET", "/api/v0/nodepools/" + made.ID, "", 404, "NODEPOOLS-MGMT-GET-002"},
		{"DELETE", path + "?force=maybe", "", 400, "CLUSTERS-MGMT-DELETE-001"},
		{"DELETE", path, "", 202, `{"cluster_id":"` + made.ID + `","message":"Cluster deletion initiated"}`},
	} {
		body, status := l.curl(t, c.method, c.path, c.body)
		if status != c.status || !strings.Contains(string(body), c.contains) {
			t.Errorf("%s %s %s: %d %s\nwant %d %s", c.method, c.path, c.body, status, body, c.status, c.contains)
		}
	}
}
