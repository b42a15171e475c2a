package arm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"atoll.dev/client/clmclient"
	"atoll.dev/front/arm"
	"atoll.dev/test/testsite"
)

func (w *world) testWrites(t *testing.T) {
	t.Run("2 PATCH answers 202 with both URLs and in the strict mode no body", func(t *testing.T) {
		a := w.do(call{method: "PATCH", path: demo, body: `{"tags":{"b":"2"}}`}).want(t, 202, `"b":"2"`)
		if a.header.Get("Location") == "" || a.header.Get("Azure-AsyncOperation") == "" {
			t.Errorf("headers %v", a.header)
		}
		w.succeed(t, a)
		w.do(call{method: "GET", path: a.header.Get("Location"), version: "-"}).want(t, 200, `"tags":{"b":"2"}`)
		a = w.do(call{mode: arm.Strict, method: "PATCH", path: demo, body: `{"tags":{"c":"3"}}`}).want(t, 202)
		if a.raw != "" || a.header.Get("Retry-After") == "" {
			t.Errorf("the answer is %q, %v", a.raw, a.header)
		}
		w.succeed(t, a)
	})
	t.Run("5 provisioningState in a body is ignored or in the strict mode compared", func(t *testing.T) {
		w.do(call{mode: arm.Strict, method: "PUT", path: demo, body: strings.Replace(clusterBody(
			`"provisioningState":"Updating"`), "Atoll Test", "atolltest", 1)}).want(t, 400, "properties.provisioningState")
		w.do(call{mode: arm.Strict, method: "PATCH", path: demo, body: `{"properties":{"provisioningState":"Succeeded"}}`}).
			want(t, 200)
		w.do(call{method: "PATCH", path: demo, body: `{"properties":{"provisioningState":"Updating"}}`}).want(t, 200,
			`"provisioningState":"Succeeded"`)
	})
	t.Run("7 PATCH merges and replaces tags as a whole", func(t *testing.T) {
		a := w.do(call{method: "PATCH", path: demo, body: `{"properties":{"nodeDrainTimeoutMinutes":7}}`}).want(t, 202)
		w.succeed(t, a)
		w.do(call{method: "GET", path: demo}).want(t, 200, `"nodeDrainTimeoutMinutes":7`, `"tags":{"c":"3"}`,
			`"podCidr":"10.128.0.0/14"`)
		a = w.do(call{method: "PATCH", path: demo, body: `{"tags":{},"properties":{"nodeDrainTimeoutMinutes":null}}`}).
			want(t, 202)
		w.succeed(t, a)
		got := w.do(call{method: "GET", path: demo}).want(t, 200)
		if strings.Contains(got.raw, "nodeDrainTimeoutMinutes") || strings.Contains(got.raw, `"tags"`) {
			t.Error(got.raw)
		}
		w.do(call{method: "PATCH", path: demo, body: `{"properties":{"platform":{"subnetId":null}}}`}).want(t, 400,
			"Required value: field cannot be null", `"target":"properties.platform.subnetId"`)
	})
	t.Run("8 entity tags decide about writes", func(t *testing.T) {
		got := w.do(call{method: "GET", path: demo}).want(t, 200)
		tag, absent := got.header.Get("ETag"), strings.Replace(demo, "demo", "absent", 1)
		patch := `{"tags":{"d":"4"}}`
		w.do(call{method: "PATCH", path: demo, body: patch, header: map[string]string{"If-Match": `"0"`}}).want(t, 412)
		w.do(call{method: "PUT", path: demo, body: clusterBody(), header: map[string]string{
			"If-None-Match": "*"}}).want(t, 412)
		w.do(call{method: "PUT", path: absent, body: clusterBody(), header: map[string]string{"If-Match": "*"}}).want(t, 412)
		w.do(call{method: "PATCH", path: absent, body: patch}).want(t, 404, "ResourceNotFound")
		w.do(call{method: "DELETE", path: demo, header: map[string]string{"If-Match": `"0"`}}).want(t, 412)
		w.succeed(t, w.do(call{method: "PATCH", path: demo, body: patch, header: map[string]string{"If-Match": tag}}).
			want(t, 202))
		w.do(call{method: "PATCH", path: demo, body: patch, header: map[string]string{"If-Match": tag}}).want(t, 412)
	})
	t.Run("a PUT that changes nothing begins no operation", func(t *testing.T) {
		got := w.do(call{method: "GET", path: demo}).want(t, 200)
		a := w.do(call{method: "PUT", path: demo, body: got.raw}).want(t, 200, `"provisioningState":"Succeeded"`)
		if a.header.Get("Azure-AsyncOperation") != "" || a.header.Get("ETag") != got.header.Get("ETag") {
			t.Errorf("headers %v", a.header)
		}
	})
}

func (w *world) testOtherAPIs(t *testing.T) {
	t.Run("a cluster that another API deletes leaves no document", func(t *testing.T) {
		path := strings.Replace(demo, "demo", "elsewhere", 1)
		w.succeed(t, w.do(call{method: "PUT", path: path, body: clusterBody()}).want(t, 201))
		page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: "name like 'elsewhere-%'"})
		if err != nil || len(page.Items) != 1 {
			t.Fatalf("%+v, %v", page.Items, err)
		}
		if _, err := w.front.Delete(t.Context(), "clusters", page.Items[0].ID, ""); err != nil {
			t.Fatal(err)
		}
		testsite.Eventually(t, "the document is gone", func() error {
			if a := w.do(call{method: "GET", path: path}); a.status != 404 {
				return errors.New(a.raw)
			}
			return nil
		})
	})
}

func (w *world) testDeletions(t *testing.T) {
	path := strings.Replace(demo, "demo", "short", 1)
	t.Run("a deletion takes the place of a creation and leaves nothing", func(t *testing.T) {
		w.pilot.Lock()
		created := w.do(call{method: "PUT", path: path, body: clusterBody()}).want(t, 201)
		testsite.Eventually(t, "the lifecycle manager has the cluster", func() error {
			page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: "name like 'short-%'"})
			if err == nil && len(page.Items) == 0 {
				err = errors.New("it has none")
			}
			return err
		})
		bodies := make(chan string, 1)
		receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var body struct{ Status string }
			_ = json.NewDecoder(r.Body).Decode(&body)
			bodies <- body.Status
		}))
		defer receiver.Close()
		removed := w.do(call{method: "DELETE", path: path, header: map[string]string{
			"Azure-AsyncNotificationUri": receiver.URL}}).want(t, 202)
		if removed.header.Get("Azure-AsyncNotification") != "Enabled" || removed.header.Get("Location") == "" {
			t.Errorf("headers %v", removed.header)
		}
		w.do(call{method: "GET", path: path}).want(t, 200, `"provisioningState":"Deleting"`)
		w.do(call{method: "DELETE", path: path}).want(t, 409, "Resource is already deleting")
		again := w.do(call{mode: arm.Strict, method: "DELETE", path: path}).want(t, 202)
		if !strings.EqualFold(again.header.Get("Location"), removed.header.Get("Location")) {
			t.Errorf("the second deletion has the operation %s", again.header.Get("Location"))
		}
		if a := w.await(t, created); a.body["status"] != "Canceled" || !strings.Contains(a.raw, "superseded") {
			t.Errorf("the creation: %s", a.raw)
		}
		w.pilot.Unlock()
		w.succeed(t, removed)
		w.do(call{method: "GET", path: removed.header.Get("Location"), version: "-"}).want(t, 204)
		w.do(call{method: "GET", path: path}).want(t, 404)
		if status := <-bodies; status != "Succeeded" {
			t.Errorf("the notification says %s", status)
		}
		testsite.Eventually(t, "the lifecycle manager has nothing of it", func() error {
			page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: "name like 'short-%'"})
			if err == nil && len(page.Items) > 0 {
				err = fmt.Errorf("it has %s", page.Items[0].JSON)
			}
			return err
		})
	})
	t.Run("6 DELETE of an absent resource is 204", func(t *testing.T) {
		w.do(call{method: "DELETE", path: path}).want(t, 204)
	})
	t.Run("20 move and checkNameAvailability are optional and answered as unknown paths", func(t *testing.T) {
		body := `{"name":"demo","type":"Microsoft.RedHatOpenShift/hcpOpenShiftClusters"}`
		w.do(call{method: "POST", path: "/subscriptions/" + sub +
			"/providers/Microsoft.RedHatOpenShift/checkNameAvailability", body: body}).want(t, 404,
			"The requested path could not be found.")
		w.do(call{method: "POST", path: strings.Split(groupIn, "/providers")[0] + "/moveResources", body: `{}`}).want(t, 404,
			`"code":"NotFound"`)
	})
}
