package arm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/test/testsite"
)

// accountID is cluster.Account where a test has a cluster of that name.
type accountID = cluster.Account

const located = "/subscriptions/" + sub + "/providers/Microsoft.RedHatOpenShift/locations/atolltest"

func (w *world) testOffers(t *testing.T) {
	t.Run("16 the operations are the same for every subscription", func(t *testing.T) {
		a := w.do(call{method: "GET", path: "/providers/Microsoft.RedHatOpenShift/operations", version: "-"}).want(t, 200,
			`"name":"Microsoft.RedHatOpenShift/hcpOpenShiftClusters/requestAdminCredential/action"`,
			`"isDataAction":false`, `"origin":"user,system"`)
		for _, item := range a.body["value"].([]any) {
			operation := item.(map[string]any)
			display := operation["display"].(map[string]any)
			for _, member := range []string{"provider", "resource", "operation", "description"} {
				if display[member] == "" {
					t.Errorf("%s has no %s", operation["name"], member)
				}
			}
		}
		stranger := newCertificate(t, time.Now().Add(time.Hour))
		w.do(call{method: "GET", path: "/providers/Microsoft.RedHatOpenShift/operations", cert: &stranger}).want(t, 401)
	})
	t.Run("versions and role sets are those of the region's catalogue", func(t *testing.T) {
		a := w.do(call{method: "GET", path: located + "/hcpOpenShiftVersions"}).want(t, 200,
			`"id":"`+located+`/hcpOpenShiftVersions/1.36.3"`, `"channelGroup":"stable"`, `"enabled":true`)
		var names []string
		for _, item := range a.body["value"].([]any) {
			names = append(names, item.(map[string]any)["name"].(string))
		}
		if strings.Join(names, " ") != "1.35.9 1.36.2 1.36.3" {
			t.Errorf("the versions are %v", names)
		}
		w.do(call{method: "GET", path: located + "/hcpOpenShiftVersions/1.36.2", version: oldest}).want(t, 200)
		w.do(call{method: "GET", path: located + "/hcpOpenShiftVersions/9.9.9"}).want(t, 404, "ResourceNotFound")
		w.do(call{method: "GET", path: strings.Replace(located, "atolltest", "elsewhere", 1) + "/hcpOpenShiftVersions"}).
			want(t, 404, "this region is 'atolltest'")
		w.do(call{method: "GET", path: located + "/hcpOperatorIdentityRoleSets"}).want(t, 200, `"name":"1.35"`,
			`"controlPlaneOperators":[]`)
		w.do(call{method: "GET", path: located + "/hcpOperatorIdentityRoleSets/1.36"}).want(t, 200)
	})
}

func (w *world) testPreflight(t *testing.T) {
	path := groupIn + "/deployments/d/preflight"
	cluster := `{"type":"Microsoft.RedHatOpenShift/hcpOpenShiftClusters","apiVersion":"` + latest + `","name":"planned",` +
		clusterBody()[1:]
	pool := func(name string, replicas int) string {
		return fmt.Sprintf(`{"type":"Microsoft.RedHatOpenShift/hcpOpenShiftClusters/nodePools","apiVersion":%q,"name":%q,`,
			oldest, name) + fmt.Sprintf(`"location":"atolltest","properties":{"platform":{"vmSize":"Standard_D4s_v3"},`+
			`"replicas":%d}}`, replicas)
	}
	check := func(contains []string, resources ...string) {
		t.Helper()
		w.do(call{method: "POST", path: path, version: "2020-06-01", body: `{"resources":[` + strings.Join(resources, ",") +
			`]}`}).want(t, 200, contains...)
	}
	t.Run("a preflight checks as PUT does and stores nothing", func(t *testing.T) {
		succeeds := []string{`{"status":"Succeeded"}`}
		check(succeeds)
		check(succeeds, pool("planned/np", 2), cluster) // the node pool before its cluster
		check(succeeds, strings.Replace(cluster, `"planned"`, `"[parameters('name')]"`, 1),
			`{"type":"Microsoft.Compute/disks"}`)
		check([]string{`"status":"Failed"`, "exists neither"}, pool("planned/np", 2))
		check([]string{`"status":"Failed"`, "Content validation failed for 'planned'", `"details":[`,
			`"target":"properties.network.hostPrefix"`}, strings.Replace(cluster, `"platform":{`,
			`"network":{"hostPrefix":30},"platform":{`, 1))
		check([]string{"MultipleErrorsOccurred", "2 errors occurred"}, pool("planned/a", 2), pool("planned/b", 2))
		check([]string{"twice"}, cluster, cluster)
		auth := `{"type":"Microsoft.RedHatOpenShift/hcpOpenShiftClusters/externalAuths","apiVersion":"` + latest +
			`","name":"planned/entra",` + authBody("https://login.example/t", "")[1:]
		check(succeeds, auth, cluster)
		check([]string{"exists neither"}, auth)
		check([]string{`"target":"properties.clients"`}, cluster, strings.Replace(auth, `"claim":{`,
			`"clients":[{}],"claim":{`, 1))
		check(succeeds, pool("demo/Workers", 3)) // exists
		w.do(call{method: "GET", path: strings.Replace(demo, "demo", "planned", 1)}).want(t, 404)
	})
	t.Run("a preflight checks the quotas of the account", func(t *testing.T) {
		page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Size: 1})
		if err != nil || len(page.Items) == 0 {
			t.Fatalf("%+v, %v", page, err)
		}
		account, limit := accountID(page.Items[0].Tenancy["account"]), int64(4)
		if _, err := w.system.SetQuotas(t.Context(), account, map[string]*int64{"nodes": &limit}, 0); err != nil {
			t.Fatal(err)
		}
		check([]string{"QuotaExceeded", "The deployment needs 2 of the quota nodes, and 3 of 4 are used."}, cluster,
			pool("planned/np", 2))
		check([]string{`{"status":"Succeeded"}`}, pool("demo/Workers", 4))
		if _, err := w.system.SetQuotas(t.Context(), account, map[string]*int64{"nodes": nil}, 0); err != nil {
			t.Fatal(err)
		}
	})
}

// createLate creates the Credential of an operation, as a worker does whose request was on its way when the operation
// was canceled.
func (w *world) createLate(t *testing.T, of answer) {
	t.Helper()
	page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: "name like 'demo-%'"})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	link := of.header.Get("Azure-AsyncOperation")
	id := link[strings.LastIndex(link, "/")+1 : strings.Index(link, "?")]
	spec, err := json.Marshal(map[string]any{"request": testsite.AdminCertificateRequest(t), "username": "ann",
		"expiration_seconds": 3600, "expires_at": time.Now().UTC().Add(time.Hour).Truncate(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	account := page.Items[0].Tenancy["account"]
	ctx := remote.WithActor(clmclient.WithTenant(t.Context(), cluster.Account(account)), remote.Actor{Principal: "ann",
		Account: account})
	if _, err := w.front.Create(ctx, clmclient.Collection("clusters").Below(page.Items[0].ID, "credentials"),
		clm.ResourceCreate{Kind: "Credential", Name: "a-late", Spec: spec, Labels: clm.Labels{"azure": "hcp",
			"azure-document": id, "azure-subscription": sub}}, ""); err != nil {
		t.Fatal(err)
	}
}

func (w *world) testRevocation(t *testing.T) {
	t.Run("a revocation ends all credentials and cancels the requests for more", func(t *testing.T) {
		count := func() (n int) {
			page, err := w.system.List(t.Context(), "credentials", clmclient.ResourceQuery{Search: remote.SearchEqual(
				"labels.azure-subscription", sub)})
			if err != nil {
				t.Fatal(err)
			}
			return len(page.Items)
		}
		if count() == 0 {
			t.Fatal("there is no credential to revoke")
		}
		ask := call{method: "POST", path: demo + "/requestAdminCredential", body: fmt.Sprintf(
			`{"certificateSigningRequest":%q}`, testsite.AdminCertificateRequest(t))}
		revoke := call{method: "POST", path: demo + "/revokeCredentials", version: oldest}
		w.pilot.Lock() // the adapters report nothing for a while
		pending := w.do(ask).want(t, 202)
		revoked := w.do(revoke).want(t, 202)
		if revoked.raw != "" || revoked.header.Get("Location") == "" {
			t.Errorf("the answer is %q, %v", revoked.raw, revoked.header)
		}
		again := w.do(revoke).want(t, 409, "Credentials are already being revoked")
		refused := w.do(ask).want(t, 409, "Cannot request credential while credentials are being revoked")
		if again.header.Get("Retry-After") != "10" || refused.header.Get("Retry-After") != "10" {
			t.Errorf("Retry-After %q, %q", again.header.Get("Retry-After"), refused.header.Get("Retry-After"))
		}
		if last := w.await(t, pending); last.body["status"] != "Canceled" {
			t.Errorf("the request for a credential: %s", last.raw)
		}
		w.pilot.Unlock()
		w.succeed(t, revoked)
		w.do(call{method: "GET", path: revoked.header.Get("Location"), version: "-"}).want(t, 204)
		testsite.Eventually(t, "no credential is left", func() error {
			if n := count(); n > 0 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		w.do(call{method: "POST", path: strings.Replace(demo, "demo", "absent", 1) + "/revokeCredentials"}).want(t, 404)
		w.createLate(t, pending)
		testsite.Eventually(t, "the credential of a canceled request is gone", func() error {
			if n := count(); n > 0 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		w.succeed(t, w.do(ask).want(t, 202))
	})
}
