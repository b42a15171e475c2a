package arm_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"atoll.dev/access"
	"atoll.dev/front/arm"
)

// operator identifies every sender, as an operator or not.
type operator struct{ isPrivileged bool }

func (o operator) Identify(*http.Request) (access.Identity, []byte, error) {
	return access.Identity{Principal: "arn:aws:iam::000000000001:user/ann", Account: "000000000001",
		Privileged: o.isPrivileged}, nil, nil
}

func (w *world) operatorAPIs(o operator) http.Handler {
	return arm.WithOperatorAPIs(arm.OperatorOptions{Store: w.store, CLM: w.front, Identifier: o, Region: "atolltest"},
		http.NotFoundHandler())
}

// testClustersService asks what operators of ARO HCP ask when they look for a cluster, with their queries.
func (w *world) testClustersService(t *testing.T) {
	get := func(h http.Handler, path, search string) (int, map[string]any, string) {
		t.Helper()
		if search != "" {
			path += "?" + url.Values{"search": {search}}.Encode()
		}
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		var body map[string]any
		_ = json.Unmarshal(recorder.Body.Bytes(), &body)
		return recorder.Code, body, recorder.Body.String()
	}
	const list, other = "/api/clusters_mgmt/v1/clusters", "/api/aro_hcp/v1alpha1/clusters"
	operators := w.operatorAPIs(operator{isPrivileged: true})
	inGroup := "azure.subscription_id='" + sub + "' and azure.resource_group_name='Shop'"
	t.Run("clusters are found by subscription, resource group and resource name", func(t *testing.T) {
		for search, wanted := range map[string]bool{
			inGroup: true, inGroup + " and azure.resource_name='demo'": true, "azure.resource_name = 'DEMO'": true,
			"azure.resource_name='absent'": false, "azure.resource_group_name='other' and name='versions'": false,
			"status.state='ready' and name='demo'": true, "state='error' and name='demo'": false,
		} {
			status, body, text := get(operators, list, search)
			items, _ := body["items"].([]any)
			if status != 200 || body["kind"] != "ClusterList" || strings.Contains(text, `"resource_name":"demo"`) != wanted ||
				float64(len(items)) != body["total"] {
				t.Errorf("%s: %d %s", search, status, text)
			}
		}
		if status, _, text := get(operators, list, "azure.color='red'"); status != 400 {
			t.Errorf("an unknown field: %d %s", status, text)
		}
		for page, want := range map[string]int{"?page=1001&size=100": 200, "?page=1002&size=100": 400,
			"?page=1000000&size=500": 400, "?page=99999999999999999999": 200} {
			if status, _, text := get(operators, list+page, ""); status != want {
				t.Errorf("%s: %d %s", page, status, text)
			}
		}
	})
	t.Run("the href of a cluster leads to its management cluster", func(t *testing.T) {
		_, body, text := get(operators, list, inGroup+" and azure.resource_name='demo'")
		items, _ := body["items"].([]any)
		if len(items) != 1 {
			t.Fatal(text)
		}
		c := items[0].(map[string]any)
		azure, _ := c["azure"].(map[string]any)
		if c["state"] != "ready" || azure["subscription_id"] != sub || azure["resource_group_name"] != "shop" {
			t.Errorf("%s", text)
		}
		href := c["href"].(string)
		if status, shard, text := get(operators, href+"/provision_shard", ""); status != 200 ||
			shard["management_cluster"] != "management-01" {
			t.Errorf("%d %s", status, text)
		}
		id := c["id"].(string)
		for path, want := range map[string]string{href: `"url":"https://127.0.0.1:30001"`,
			href + "/status":                      `"state":"ready"`,
			other + "/" + id:                      `"href":"` + other + "/" + id + `"`,
			other + "/" + id + "/node_pools":      `"vm_size":"Standard_D4s_v3"`,
			other + "/" + id + "/provision_shard": `"id":"management-01"`} {
			if status, _, text := get(operators, path, ""); status != 200 || !strings.Contains(text, want) {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		if status, _, text := get(operators, list+"/none/provision_shard", ""); status != 404 {
			t.Errorf("an unknown cluster: %d %s", status, text)
		}
	})
	t.Run("customers see nothing of it", func(t *testing.T) {
		for _, path := range []string{list, other, list + "/x/provision_shard"} {
			if status, _, text := get(w.operatorAPIs(operator{}), path, ""); status != 403 {
				t.Errorf("%s: %d %s", path, status, text)
			}
			if status, _, text := get(access.WithoutOperators(operators), path, ""); status != 404 {
				t.Errorf("%s at the listener of customers: %d %s", path, status, text)
			}
		}
	})
}
