package rosa_test

import (
	"context"
	"log/slog"
	"maps"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/clm"
	"atoll.dev/front/rosa"
	"atoll.dev/test/testworld"
)

// The labels of an update replace those of the registration in the lifecycle manager, which places by them, and in
// Maestro, whose consumers the API shows. An update without labels leaves them.
func TestAnUpdateReplacesTheLabelsOfAManagementCluster(t *testing.T) {
	b := startBehind(t, "")
	manager := testworld.StartCLM(b.site, testworld.CLMOptions{Tenancy: clm.Tenancy{Enabled: true,
		Dimensions: []clm.Dimension{{Header: clmclient.TenantHeader, Key: "account", Required: true}}}})
	endpoint, ca := platformOver(t, rosa.Options{Maestro: b.client(), CLM: manager.DialAs("platform"),
		Log: slog.New(slog.DiscardHandler)})
	p := clientOf(t, endpoint, ca, operator)
	system := manager.DialAs("adapter")
	check := func(step string, want map[string]string) {
		t.Helper()
		shown, err := p.ManagementCluster(t.Context(), "m")
		if err != nil || !maps.Equal(shown.Labels, want) {
			t.Errorf("%s: shown %v, %v, want %v", step, shown.Labels, err, want)
		}
		placed, err := system.Named(t.Context(), "managementclusters", "m")
		if err != nil || !maps.Equal(placed.Labels, want) {
			t.Errorf("%s: the lifecycle manager has %v, %v, want %v", step, placed.Labels, err, want)
		}
	}
	update := func(ctx context.Context, u platform.ManagementClusterUpdate) {
		t.Helper()
		got, err := p.UpdateManagementCluster(ctx, "m", u)
		if err != nil || u.Labels != nil && !maps.Equal(got.Labels, u.Labels) {
			t.Errorf("update %v: %v, %v", u, got.Labels, err)
		}
	}
	ctx := t.Context()
	_, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "m",
		Labels: map[string]string{"zone": "a", "class": "shared"}})
	if err != nil {
		t.Fatal(err)
	}
	check("registered", map[string]string{"zone": "a", "class": "shared"})
	update(ctx, platform.ManagementClusterUpdate{Labels: map[string]string{"zone": "b", "rack": "7"}})
	check("replaced", map[string]string{"zone": "b", "rack": "7"})
	update(ctx, platform.ManagementClusterUpdate{State: platform.ManagementClusterUpdateStateCordoned})
	check("cordoned", map[string]string{"zone": "b", "rack": "7"})
	_, err = p.UpdateManagementCluster(ctx, "m", platform.ManagementClusterUpdate{
		Labels: map[string]string{"not possible": "x"}})
	want(t, err, 400, "invalid-request", "no label key")
	check("refused", map[string]string{"zone": "b", "rack": "7"})
}
