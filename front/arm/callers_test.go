package arm_test

import (
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/front/arm"
)

func (w *world) testCallers(t *testing.T) {
	t.Run("only a published certificate proves ARM", func(t *testing.T) {
		stranger := newCertificate(t, time.Now().Add(time.Hour))
		w.do(call{method: "GET", path: demo, cert: &stranger}).want(t, 401, "AuthenticationFailed")
		w.do(call{method: "PUT", path: "/subscriptions/" + sub, cert: &stranger, body: `{"state":"Deleted"}`}).want(t, 401)
		server := w.servers[arm.Compatible]
		transport := server.Client().Transport.(*http.Transport).Clone()
		defer transport.CloseIdleConnections()
		transport.TLSClientConfig.Certificates = []tls.Certificate{}
		if res, err := (&http.Client{Transport: transport}).Get(server.URL + demo); err == nil {
			res.Body.Close()
			t.Errorf("a caller without a certificate got %s", res.Status)
		}
	})
	t.Run("a policy of the account forbids what ARM has permitted", func(t *testing.T) {
		page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: remote.SearchEqual(
			"labels.azure-subscription", sub), Order: "created_time asc"})
		if err != nil || len(page.Items) == 0 {
			t.Fatalf("%+v, %v", page, err)
		}
		account := page.Items[0].Tenancy["account"]
		d := w.keys.Directory()
		list, _, err := d.Attachments(t.Context(), cluster.Account(account), access.Window{Limit: 10})
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		if err := d.Detach(t.Context(), cluster.Account(account), list[0].ID); err != nil {
			t.Fatal(err)
		}
		w.do(call{method: "PATCH", path: demo, body: `{"tags":{"z":"1"}}`}).want(t, 403, "AuthorizationFailed")
		w.do(call{method: "GET", path: demo}).want(t, 403)
		w.register(t, sub, "Registered") // does not attach the policy again
		w.do(call{method: "GET", path: demo}).want(t, 403)
		if _, err := d.Attach(t.Context(), list[0]); err != nil {
			t.Fatal(err)
		}
		w.do(call{method: "GET", path: demo}).want(t, 200)
	})
}
