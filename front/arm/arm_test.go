package arm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/leakcheck"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// TestARMContract checks the points of ARM's contract for resource providers in one world. The number of
// a point is that of the list in docs/azure.md.
func TestARMContract(t *testing.T) {
	w := startWorld(t)
	t.Run("14 requests before the registration change nothing and reads find nothing", func(t *testing.T) {
		w.do(call{method: "GET", path: "/subscriptions/" + sub}).want(t, 404, "ResourceNotFound")
		w.do(call{method: "PUT", path: demo, body: clusterBody()}).want(t, 400, "InvalidSubscriptionState")
		w.do(call{method: "GET", path: demo}).want(t, 404, "ResourceNotFound")
		w.do(call{method: "GET", path: groupIn + "/hcpOpenShiftClusters"}).want(t, 200, `"value":[]`)
		w.register(t, sub, "Warned")
		w.register(t, sub, "Registered")
		w.register(t, sub, "Registered")
		w.do(call{method: "GET", path: "/subscriptions/" + sub}).want(t, 200, `"state":"Registered"`)
		w.do(call{method: "PUT", path: "/subscriptions/" + sub, body: `{"state":"Sold"}`}).want(t, 400,
			"MultipleErrorsOccurred")
	})
	w.pilot.Lock() // the adapters report nothing for a while
	var created answer
	t.Run("1 PUT answers 201 with a state that is not terminal", func(t *testing.T) {
		created = w.do(call{method: "PUT", path: demo, body: clusterBody()}).want(t, 201, `"provisioningState":"Accepted"`,
			`"id":"`+demo+`"`, `"managedResourceGroup":"arohcp-demo-`, `"podCidr":"10.128.0.0/14"`, `"id":"1.36"`,
			`"createdBy":"ann"`)
		if created.header.Get("Location") != "" || created.header.Get("Retry-After") != "1" {
			t.Errorf("headers %v", created.header)
		}
		got := w.do(call{method: "GET", path: demo}).want(t, 200)
		if state := got.at("properties", "provisioningState"); state != "Accepted" && state != "Provisioning" {
			t.Errorf("provisioningState %v during the creation", state)
		}
	})
	t.Run("3 the operation answers 200 with a status that is not terminal", func(t *testing.T) {
		link := created.header.Get("Azure-AsyncOperation")
		if !strings.HasPrefix(link, "https://"+public+"/subscriptions/"+sub+"/providers/Microsoft.RedHatOpenShift/locations/"+
			"atolltest/hcpOperationStatuses/") {
			t.Errorf("Azure-AsyncOperation: %s", link)
		}
		w.do(call{method: "GET", path: link, version: "-"}).want(t, 200, `"startTime"`, `"percentComplete"`)
		other := w.do(call{method: "GET", path: link, version: "-", header: map[string]string{
			"X-Ms-Client-Object-Id": tenant}}).want(t, 404, "ResourceNotFound")
		if other.raw == "" {
			t.Error("no body")
		}
	})
	t.Run("19 a write during an operation is refused and names the state", func(t *testing.T) {
		w.do(call{method: "PUT", path: demo, body: clusterBody()}).want(t, 409, "Conflict", "Cannot update resource while",
			`"target":"`+demo+`"`)
		w.do(call{method: "PUT", path: demo + "/nodePools/np", body: poolBody("")}).want(t, 409,
			"Cannot create resource while parent resource is")
		w.do(call{method: "POST", path: demo + "/requestAdminCredential", body: fmt.Sprintf(
			`{"certificateSigningRequest":%q}`, testsite.AdminCertificateRequest(t))}).want(t, 409,
			"Cannot request credential while resource is")
	})
	w.pilot.Unlock()
	t.Run("4 resource and operation agree at the end", func(t *testing.T) {
		last := w.await(t, created)
		got := w.do(call{method: "GET", path: demo}).want(t, 200, `"provisioningState":"Succeeded"`,
			`"url":"https://127.0.0.1:30001"`, `"baseDomain":"hosted.test-1.atoll.internal"`,
			`"issuerUrl":"https://kubernetes.default.svc.cluster.local"`, `"status":{"conditions":[{"type":"Available",`+
				`"status":"True"`, `{"type":"Progressing","status":"False"`, `{"type":"Degraded","status":"False"`)
		older := w.do(call{method: "GET", path: demo, version: "2025-12-23-preview"}).want(t, 200, `"baseDomain"`)
		if strings.Contains(older.raw, `"conditions"`) {
			t.Errorf("an api-version without conditions shows them: %s", older.raw)
		}
		if last.body["status"] != "Succeeded" || last.body["endTime"] == nil || last.body["percentComplete"] != 100.0 ||
			got.header.Get("ETag") == "" {
			t.Errorf("%s; %v", last.raw, got.header)
		}
	})
	t.Run("the cluster is the Cluster that the Platform API would make", func(t *testing.T) {
		page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: remote.SearchEqual(
			"labels.azure-subscription", sub)})
		if err != nil || len(page.Items) != 1 {
			t.Fatalf("%+v, %v", page, err)
		}
		r := page.Items[0]
		if !strings.HasPrefix(r.Name, "demo-") || len(r.Tenancy["account"]) != 12 || !strings.Contains(string(r.Spec),
			`atoll.dev/release:1.36.3`) || !strings.Contains(r.CreatedBy, "assumed-role/azure/"+client) {
			t.Errorf("%s %v %s %s", r.Name, r.Tenancy, r.CreatedBy, r.Spec)
		}
	})
	w.testWrites(t)
	w.testNames(t)
	w.testErrors(t)
	w.testVersions(t)
	w.testPools(t)
	w.testCredentials(t)
	w.testRevocation(t)
	w.testOffers(t)
	w.testExternalAuths(t)
	w.testPreflight(t)
	w.testClassic(t)
	w.testLists(t)
	w.testCallers(t)
	w.testTokens(t)
	w.testClustersService(t)
	w.testAdminAPI(t)
	w.testOtherAPIs(t)
	w.testAbsences(t)
	w.testDeletions(t)
	w.testKills(t)
	w.testSubscriptions(t)
}

// clusterBody returns the body of a PUT of a cluster; more are further properties.
func clusterBody(more ...string) string {
	return fmt.Sprintf(`{"location":"Atoll Test","tags":{"a":"1"},"properties":{"platform":{`+
		`"subnetId":"/subscriptions/%[1]s/resourceGroups/n/providers/Microsoft.Network/virtualNetworks/v/subnets/s",`+
		`"networkSecurityGroupId":"/subscriptions/%[1]s/resourceGroups/n/providers/Microsoft.Network/`+
		`networkSecurityGroups/g"}%[2]s}}`,
		sub, strings.Join(append([]string{""}, more...), ","))
}

func poolBody(more string) string {
	return `{"location":"atolltest","properties":{"platform":{"vmSize":"Standard_D4s_v3"},"replicas":2` + more + `}}`
}

func (w *world) testNames(t *testing.T) {
	t.Run("9 names have no case and keep that of the creation", func(t *testing.T) {
		got := w.do(call{method: "GET", path: strings.ToUpper(demo[:len("/subscriptions/"+sub)]) + strings.ToLower(
			demo[len("/subscriptions/"+sub):])})
		got.want(t, 200, `"id":"`+demo+`"`, `"name":"demo"`, `"type":"Microsoft.RedHatOpenShift/hcpOpenShiftClusters"`)
		list := w.do(call{method: "GET", path: strings.ToLower(groupIn) + "/hcpopenshiftclusters"}).want(t, 200)
		if items, _ := list.body["value"].([]any); len(items) != 1 || items[0].(map[string]any)["id"] != got.body["id"] {
			t.Errorf("list %s", list.raw)
		}
	})
	t.Run("11 headers", func(t *testing.T) {
		a := w.do(call{method: "GET", path: demo, header: map[string]string{"X-Ms-Client-Request-Id": "c1"}}).want(t, 200)
		b := w.do(call{method: "GET", path: demo, header: map[string]string{"X-Ms-Client-Request-Id": "c1",
			"X-Ms-Return-Client-Request-Id": "true"}}).want(t, 200)
		if a.header.Get("X-Ms-Client-Request-Id") != "" || b.header.Get("X-Ms-Client-Request-Id") != "c1" ||
			a.header.Get("X-Ms-Request-Id") == b.header.Get("X-Ms-Request-Id") ||
			!strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
			t.Errorf("%v; %v", a.header, b.header)
		}
		c := w.do(call{method: "PATCH", path: demo, body: `{"tags":{"r":"1"}}`, header: map[string]string{
			"Referer": "https://evil.example/x"}}).want(t, 202)
		if link := c.header.Get("Location"); strings.Contains(link, "evil") {
			t.Errorf("Location names a host that is not permitted: %s", link)
		}
		w.succeed(t, c)
	})
}

func (w *world) testErrors(t *testing.T) {
	bad := func(path string) string { return strings.Replace(demo, "demo", path, 1) }
	t.Run("12 errors name what is wrong", func(t *testing.T) {
		for _, c := range []struct {
			call
			status int
			parts  []string
		}{
			{call{method: "PUT", path: bad("x"), body: `{`}, 400, []string{"InvalidRequestContent"}},
			{call{method: "PUT", path: bad("x"), body: `{}`, header: map[string]string{"Content-Type": "text/plain"}}, 415,
				[]string{"The content media type 'text/plain' is not supported."}},
			{call{method: "PUT", path: bad("1x"), body: clusterBody()}, 400, []string{"InvalidResourceName"}},
			{call{method: "PUT", path: bad("x"), body: `{"location":"l","properties":{}}`}, 400, []string{
				`"target":"properties.platform"`, "Required value"}},
			{call{method: "PUT", path: bad("x"), body: clusterBody(`"network":{"hostPrefix":30}`)}, 400, []string{
				"Invalid value: 30: must be less than or equal to 26", `"target":"properties.network.hostPrefix"`}},
			{call{method: "PUT", path: bad("x"), body: clusterBody(`"network":{"hostPrefix":22,"podCidr":"x"}`)}, 400,
				[]string{"MultipleErrorsOccurred", "2 errors occurred", `"target":"properties.network.podCidr"`}},
			{call{method: "PUT", path: bad("x"), body: clusterBody(`"network":{"podCidr":"10.0.0.0/14"}`)}, 400, []string{
				"overlaps", `"target":"properties.network.machineCidr"`}},
			{call{method: "PUT", path: bad("x"), body: clusterBody(`"version":{"id":"4.20"}`)}, 400, []string{
				`Unsupported value: \"4.20\"`, `\"1.36\"`}},
			{call{method: "PUT", path: bad("x"), body: clusterBody(`"api":{"visibility":"Private"}`)}, 400, []string{
				`supported values: \"Public\"`}},
			{call{method: "PUT", path: bad("x"), body: strings.Replace(clusterBody(), "{", `{"name":"y",`, 1)}, 400,
				[]string{"name must match resourceID path", `"target":"name"`}},
			{call{method: "PATCH", path: demo, body: `{"properties":{"network":{"podCidr":"10.64.0.0/14"}}}`}, 400,
				[]string{"Forbidden: field is immutable", `"target":"properties.network.podCidr"`}},
			{call{method: "GET", path: bad("x")}, 404, []string{"was not found."}},
			{call{method: "GET", path: groupIn + "/closedShiftClusters/x"}, 404, []string{`"code":"NotFound"`}},
			{call{method: "GET", path: "/subscriptions/nonsense/x"}, 400, []string{"InvalidSubscriptionID"}},
			{call{method: "GET", path: "/other"}, 404, []string{"The requested path could not be found."}},
		} {
			w.do(c.call).want(t, c.status, c.parts...)
		}
	})
	t.Run("13 limits of bodies and tags", func(t *testing.T) {
		tags := map[string]string{}
		for i := range 51 {
			tags[fmt.Sprint("t", i)] = "v"
		}
		data, _ := json.Marshal(map[string]any{"tags": tags})
		w.do(call{method: "PATCH", path: demo, body: string(data)}).want(t, 400, "Too many: 51")
		w.do(call{method: "PATCH", path: demo, body: `{"tags":{"k":"` + strings.Repeat("v", 257) + `"}}`}).want(t, 400)
		w.do(call{method: "PATCH", path: demo, body: `{"tags":{"k":"` + strings.Repeat("v", 4<<20) + `"}}`}).want(t, 413)
	})
	t.Run("15 api-versions that are missing or unknown", func(t *testing.T) {
		w.do(call{method: "GET", path: demo, version: "-"}).want(t, 400, "InvalidParameter", "'api-version'")
		w.do(call{method: "GET", path: demo, version: "2020-01-01"}).want(t, 400, "InvalidResourceType", latest)
	})
}

func (w *world) testVersions(t *testing.T) {
	t.Run("fields of a newer api-version survive an older one", func(t *testing.T) {
		path := strings.Replace(demo, "demo", "versions", 1)
		w.succeed(t, w.do(call{method: "PUT", path: path, body: clusterBody(`"cryptoRestrictions":"FIPS"`,
			`"imageDigestMirrors":[{"source":"a.example","mirrors":["b.example"]}]`)}).want(t, 201))
		old := w.do(call{method: "GET", path: path, version: oldest}).want(t, 200)
		if strings.Contains(old.raw, "FIPS") || strings.Contains(old.raw, "imageDigestMirrors") ||
			strings.Contains(old.raw, "ingress") {
			t.Errorf("the oldest api-version shows newer fields: %s", old.raw)
		}
		body := strings.Replace(clusterBody(`"nodeDrainTimeoutMinutes":3`), `"a":"1"`, `"a":"2"`, 1)
		w.succeed(t, w.do(call{method: "PUT", path: path, version: oldest, body: body}).want(t, 200))
		w.succeed(t, w.do(call{method: "PATCH", path: path, version: oldest, body: `{"tags":{"x":"y"}}`}).want(t, 202))
		w.do(call{method: "GET", path: path}).want(t, 200, `"FIPS"`, `"b.example"`, `"nodeDrainTimeoutMinutes":3`,
			`"x":"y"`)
		// version.id was for the creation only in the oldest api-version.
		older := `{"properties":{"version":{"id":"1.35"}}}`
		w.do(call{method: "PATCH", path: path, version: oldest, body: older}).want(t, 400,
			"Forbidden: field is immutable")
		w.do(call{method: "PATCH", path: path, body: older}).want(t, 400,
			"a release does not go back", `"target":"properties.version.id"`)
		w.succeed(t, w.do(call{method: "DELETE", path: path}).want(t, 202))
	})
	t.Run("a newer api-version puts a cluster that an older one has created", func(t *testing.T) {
		path := strings.Replace(demo, "demo", "older", 1)
		w.succeed(t, w.do(call{method: "PUT", path: path, version: oldest, body: clusterBody()}).want(t, 201))
		w.succeed(t, w.do(call{method: "PUT", path: path, body: clusterBody()}).want(t, 200, `"cryptoRestrictions":"None"`))
		w.do(call{method: "PATCH", path: path, body: `{"properties":{"cryptoRestrictions":"FIPS"}}`}).want(t, 400,
			"Forbidden: field is immutable")
		w.succeed(t, w.do(call{method: "DELETE", path: path}).want(t, 202))
	})
}

func (w *world) testPools(t *testing.T) {
	pool := demo + "/nodePools/Workers"
	t.Run("17 a node pool needs its cluster", func(t *testing.T) {
		absent := strings.Replace(pool, "demo", "absent", 1)
		w.do(call{method: "PUT", path: absent, body: poolBody("")}).want(t, 404, "ParentResourceNotFound")
		w.do(call{method: "GET", path: strings.TrimSuffix(absent, "/Workers")}).want(t, 404, "ParentResourceNotFound")
		w.do(call{method: "PUT", path: pool, body: strings.Replace(poolBody(""), "D4s", "Q4s", 1)}).want(t, 400,
			`"target":"properties.platform.vmSize"`)
		w.do(call{method: "PUT", path: pool, body: poolBody(`,"autoScaling":{"min":1,"max":2}`)}).want(t, 400, "Forbidden")
		w.do(call{method: "PUT", path: pool, body: strings.Replace(poolBody(""), `"vmSize"`,
			`"osDisk":{"diskType":"Ephemeral","sizeGiB":2041},"vmSize"`, 1)}).want(t, 400,
			`"target":"properties.platform.osDisk.sizeGiB"`)
		w.succeed(t, w.do(call{method: "PUT", path: pool, body: poolBody(`,"labels":[{"key":"tier","value":"web"}]`)}).
			want(t, 201, `"id":"1.36.3"`))
		w.do(call{method: "GET", path: pool}).want(t, 200, `"provisioningState":"Succeeded"`, `"name":"Workers"`)
		w.do(call{method: "GET", path: demo + "/nodePools"}).want(t, 200, `"id":"`+pool+`"`)
		w.succeed(t, w.do(call{method: "PATCH", path: pool, body: `{"properties":{"replicas":3}}`}).want(t, 202))
		w.do(call{method: "PATCH", path: pool, body: `{"properties":{"autoRepair":false}}`}).want(t, 400, "immutable")
		page, err := w.system.List(t.Context(), "nodepools", clmclient.ResourceQuery{Search: remote.SearchEqual(
			"labels.azure-subscription", sub)})
		if err != nil || len(page.Items) != 1 || page.Items[0].Name != "workers" || !strings.Contains(
			string(page.Items[0].Spec), `"m6a.xlarge"`) || !strings.Contains(string(page.Items[0].Spec), `"tier"`) {
			t.Errorf("%+v, %v", page.Items, err)
		}
	})
}

func (w *world) testLists(t *testing.T) {
	t.Run("10 lists have pages", func(t *testing.T) {
		other := strings.Replace(demo, "Shop", "other", 1) // the same name in another resource group
		w.succeed(t, w.do(call{method: "PUT", path: other, body: clusterBody()}).want(t, 201))
		all := "/subscriptions/" + sub + "/providers/Microsoft.RedHatOpenShift/hcpOpenShiftClusters"
		var ids []string
		link := ""
		for a := w.do(call{method: "GET", path: all + "?$top=1"}); ; a = w.do(call{method: "GET", path: link, version: "-"}) {
			a.want(t, 200)
			for _, item := range a.body["value"].([]any) {
				ids = append(ids, item.(map[string]any)["id"].(string))
			}
			if link, _ = a.body["nextLink"].(string); link == "" {
				break
			}
			if !strings.HasPrefix(link, "https://"+public+all) || !strings.Contains(link, "skipToken=") {
				t.Fatalf("nextLink %s", link)
			}
		}
		if len(ids) != 2 || ids[0] != demo || ids[1] != other {
			t.Errorf("the pages have %v", ids)
		}
		w.do(call{method: "GET", path: all + "?$skipToken=x"}).want(t, 400, "skipToken")
		if a := w.do(call{method: "GET", path: groupIn + "/hcpOpenShiftClusters"}).want(t, 200); len(
			a.body["value"].([]any)) != 1 {
			t.Errorf("the resource group has %s", a.raw)
		}
		if a := w.do(call{method: "GET", path: strings.Replace(groupIn, "Shop", "none", 1) + "/hcpOpenShiftClusters"}).want(
			t, 200); a.raw != `{"value":[]}` {
			t.Errorf("an empty list is %s", a.raw)
		}
	})
}

// testDeletionBeside changes a subscription to Deleted while a creation that was admitted before is on its way.
func (w *world) testDeletionBeside(t *testing.T) {
	const leaving = "0a1b2c3d-0000-4000-8000-00000000dead"
	const kind store.Kind = "ArmSubscription"
	w.register(t, leaving, "Registered")
	answers := make(chan answer, 1)
	err := w.store.Tx(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.GetForUpdate(t.Context(), kind, leaving); err != nil {
			return err
		}
		go func() {
			answers <- w.do(call{method: "PUT", path: strings.Replace(demo, sub, leaving, 1), body: clusterBody()})
		}()
		testsite.Eventually(t, "the creation waits for the subscription, or is answered", func() error {
			var waiting int
			err := w.store.Read(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
				return c.QueryRow(ctx, `select count(*) from pg_stat_activity where wait_event_type = 'Lock'
					and datname = current_database()`).Scan(&waiting)
			})
			if err == nil && waiting == 0 && len(answers) == 0 {
				err = errors.New("neither")
			}
			return err
		})
		_, _, err := tx.Update(t.Context(), kind, leaving, 0, func(d *store.Document) error {
			d.Spec = bytes.ReplaceAll(d.Spec, []byte(`"Registered"`), []byte(`"Deleted"`))
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	(<-answers).want(t, 400, "Deleted")
}

func (w *world) testSubscriptions(t *testing.T) {
	t.Run("14 no cluster is accepted when its subscription has been deleted", w.testDeletionBeside)
	t.Run("14 the state of a subscription decides about requests", func(t *testing.T) {
		w.register(t, sub, "Warned")
		w.do(call{method: "PUT", path: strings.Replace(demo, "demo", "new", 1), body: clusterBody()}).want(t, 409, "Warned")
		w.do(call{method: "POST", path: demo + "/requestAdminCredential", body: `{}`}).want(t, 409, "Warned")
		w.register(t, sub, "Suspended")
		w.do(call{method: "GET", path: demo}).want(t, 200)
		w.succeed(t, w.do(call{method: "DELETE", path: strings.Replace(demo, "Shop", "other", 1)}).want(t, 202))
		w.do(call{method: "PATCH", path: demo, body: `{}`}).want(t, 409, "InvalidSubscriptionState", "Suspended")
		w.register(t, sub, "Unregistered")
		w.do(call{method: "GET", path: demo}).want(t, 404)
		w.do(call{method: "GET", path: groupIn + "/hcpOpenShiftClusters"}).want(t, 200, `"value":[]`)
		w.register(t, sub, "Deleted")
		w.do(call{method: "PUT", path: demo, body: clusterBody()}).want(t, 400, "Deleted")
		testsite.Eventually(t, "every cluster of the subscription is gone", func() error {
			page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{})
			if err == nil && len(page.Items) > 0 {
				err = fmt.Errorf("there are %d", len(page.Items))
			}
			if a := w.do(call{method: "GET", path: demo}); err == nil && a.status != 404 {
				err = errors.New(a.raw)
			}
			return err
		})
		w.do(call{method: "GET", path: demo + "/nodePools/Workers"}).want(t, 404)
		w.register(t, sub, "Deleted")
	})
}
