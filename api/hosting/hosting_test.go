package hosting_test

import (
	"testing"

	"atoll.dev/api/hosting"
)

// The names are a contract with the adapters, which compute them in their
// task configs, and with what runs already.
func TestNames(t *testing.T) {
	const id = "0198a1b2-0000-7000-8000-000000000001"
	hc := hosting.HostedClusterName(id)
	for got, want := range map[string]string{
		hosting.Namespace(id):               "clusters-" + id,
		hc:                                  "hc-1abf3affa610",
		hosting.NodePoolName(hc, "workers"): "hc-1abf3affa610-workers",
		hosting.CredentialName(id):          "cred-1abf3affa610",
		hosting.ServerName(hc):              "hc-1abf3affa610.hosted.atoll.internal",
		hosting.CredentialGroup("0198"):     "atoll:credential:0198",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
