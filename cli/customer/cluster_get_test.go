package customer

import (
	"strings"
	"testing"
	"time"

	"atoll.dev/api/platform"
)

// A customer whose issuer of tokens cannot be read saw a Ready cluster and no word of the issuer.
func TestADegradedClusterSaysWhy(t *testing.T) {
	for _, c := range []struct {
		phase         platform.ClusterPhase
		reason, shown string
	}{
		{platform.ClusterPhaseReady, "AsExpected", "demo (): Ready\n"},
		{platform.ClusterPhaseReady, "Degraded", "demo (): Ready: an issuer\n"},
		{"Provisioning", "PlaneStarting", "demo (): Provisioning: an issuer\n"},
	} {
		cluster := platform.Cluster{Name: "demo"}
		cluster.Status.Phase, cluster.Status.Reason, cluster.Status.Message = c.phase, c.reason, "an issuer"
		var out strings.Builder
		clusterDetails(&out, cluster, nil, time.Now())
		if !strings.HasPrefix(out.String(), c.shown) {
			t.Errorf("%s, %s: %s", c.phase, c.reason, out.String())
		}
	}
}
