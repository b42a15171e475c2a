package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/test/localtest"
)

// The programs of examples/azure-sdk use a region through Azure's SDK for Go, as they would use Azure.
func TestProgramsOfAzuresSDK(t *testing.T) {
	t.Parallel()
	r := localtest.Shared(t)
	cmd := exec.CommandContext(t.Context(), "go", "test", "-trimpath", "-count=1", "-v", ".")
	cmd.Dir = "../../examples/azure-sdk"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "ATOLL_AZURE_CLIENT="+filepath.Join(r.Home, "azure",
		"client.json"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
	status, _, body := r.Curl("/api/clusters_mgmt/v1/clusters", "-G", "--data-urlencode",
		"search=azure.subscription_id='s' and azure.resource_group_name='example'")
	if status != 200 || !strings.Contains(body, `"total":0`) {
		t.Errorf("the view of Clusters Service: %d %s", status, body)
	}
}
