package arm_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/access"
)

// testAdminAPI asks the admin API of ARO classic what needs no installer, and for what does.
func (w *world) testAdminAPI(t *testing.T) {
	ask := func(h http.Handler, method, path string) (int, string) {
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return recorder.Code, recorder.Body.String()
	}
	operators := w.operatorAPIs(operator{isPrivileged: true})
	of := "/admin" + groupIn + "/openShiftClusters/old"
	t.Run("the admin API of classic clusters serves what needs no installer", func(t *testing.T) {
		for _, c := range []struct {
			method, path string
			status       int
			part         string
		}{
			{"GET", "/admin/versions", 200, `"openShiftPullspec":"atoll.dev/release:1.36.3"`},
			{"PUT", "/admin/versions", 501, "atoll clm"},
			{"GET", "/admin/supportedVmSizes?vmRole=worker", 200, `"Standard_D4s_v3"`},
			{"GET", "/admin/supportedVmSizes?vmRole=king", 400, "vmRole"},
			{"GET", "/admin/clusters?name=x&state=Failed", 200, `{"clusters":[]}`},
			{"GET", "/admin/providers/Microsoft.RedHatOpenShift/openShiftClusters", 200, `{"value":[]}`},
			{"GET", "/admin/platformWorkloadIdentityRoleSets", 200, `{"value":[]}`},
			{"GET", "/admin/billingDocuments", 200, "[]"}, {"GET", "/admin/billingDocuments/b", 404, "ResourceNotFound"},
			{"GET", "/admin/maintenanceManifests/queued?limit=5", 200, "[]"},
			{"GET", "/admin/maintenanceSchedules", 200, "[]"}, {"PUT", "/admin/maintenanceSchedules", 501, "atoll rollout"},
			{"GET", "/admin/hivesyncset", 501, "no Hive"}, {"GET", "/admin/hive/k8sObjects/pods", 501, "no Hive"},
			{"GET", of + "/top/pods", 501, "no installer"}, {"POST", of + "/kubeconfig/newElevated", 501, "no installer"},
			{"POST", of + "/resizeControlPlane?vmSize=x", 501, "no installer"}, {"DELETE", of + "/kubernetesObjects", 501, ""},
			{"PATCH", of, 501, "NotImplemented"}, {"POST", of + "/maintenanceManifests/m/cancel", 501, ""},
			{"GET", of + "/unknown", 404, "NotFound"}, {"DELETE", "/admin/versions", 405, "MethodNotAllowed"},
		} {
			path := c.path + map[bool]string{true: "&", false: "?"}[strings.Contains(c.path, "?")] + "api-version=admin"
			if status, text := ask(operators, c.method, path); status != c.status || !strings.Contains(text, c.part) {
				t.Errorf("%s %s: %d %s", c.method, c.path, status, text)
			}
		}
		if status, text := ask(operators, "GET", "/admin/versions?api-version=2025-07-25"); status != 400 {
			t.Errorf("another api-version: %d %s", status, text)
		}
	})
	t.Run("customers cannot reach the admin API", func(t *testing.T) {
		const path = "/admin/versions?api-version=admin"
		if status, text := ask(w.operatorAPIs(operator{}), "GET", path); status != 403 {
			t.Errorf("%d %s", status, text)
		}
		if status, text := ask(access.WithoutOperators(operators), "GET", path); status != 404 {
			t.Errorf("at the listener of customers: %d %s", status, text)
		}
	})
}

// TestEveryPointOfARMsContractHasATest looks for a test with the number of each point of docs/azure.md.
func TestEveryPointOfARMsContractHasATest(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(data)
	}
	for point := 1; point <= 20; point++ {
		if !strings.Contains(tests.String(), fmt.Sprintf("t.Run(\"%d ", point)) {
			t.Errorf("no test has the number %d", point)
		}
	}
}
