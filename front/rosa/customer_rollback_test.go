package rosa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

// A customer returns a cluster to the release before its last upgrade, and reads until when that is possible and why an
// upgrade has failed. An ordinary change of the spec does not go back.
func TestACustomerRollsAnUpgradeBack(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	made, err := p.CreateCluster(ctx, named("demo", `{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.2"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	id := client.ClusterID(made.ID)
	isRefused := func(what string, err error, status int, code string) {
		t.Helper()
		if e, ok := errors.AsType[*remote.Error](err); !ok || e.Status != status || e.Code != "CLUSTERS-MGMT-"+code {
			t.Errorf("%s: %v, want %d %s", what, err, status, code)
		}
	}
	rollback := func() (platform.Cluster, error) {
		c, err := l.once(operator).Rollback(ctx, id)
		return c.Cluster, err
	}
	report := func(phase, more string) {
		t.Helper()
		l.report("clusters", made.ID, "hosted-cluster", fmt.Sprintf(`{"version":"1.36.3","upgrade":{"from":"1.36.2",
			"to":"1.36.3","phase":%q,"startedAt":"2026-01-01T00:00:00Z"%s}}`, phase, more), "Available=True")
	}
	order := func(version string) error {
		_, err := p.UpdateCluster(ctx, id, json.RawMessage(
			`{"spec":{"hostedCluster":{"release":{"image":"atoll.dev/release:`+version+`"}}}}`), "")
		return err
	}
	_, err = rollback()
	isRefused("a cluster without an upgrade", err, 409, "ROLLBACK-012")
	if c, err := p.Cluster(ctx, id); err != nil || c.Status.Upgrade != nil {
		t.Errorf("an upgrade before the first: %+v, %v", c.Status.Upgrade, err)
	}
	if err := order("1.36.3"); err != nil {
		t.Fatal(err)
	}
	soak := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	report("Soaking", fmt.Sprintf(`,"soakUntil":%q,"emulatedVersion":"1.35"`, soak.Format(time.RFC3339)))
	c, err := p.Cluster(ctx, id)
	if u := c.Status.Upgrade; err != nil || u == nil || u.From != "1.36.2" || u.To != "1.36.3" || !u.CanRollBack ||
		u.Phase != platform.ClusterUpgradePhaseSoaking || u.SoakUntil == nil || !u.SoakUntil.Equal(soak) ||
		u.EmulatedVersion != "1.35" || u.LostAfter != nil {
		t.Errorf("in the soak: %+v, %v", u, err)
	}
	isRefused("a change of the spec", order("1.36.2"), 422, "VALIDATION-001")

	for range 2 { // the second request changes nothing
		c, err := rollback()
		if err != nil || c.Spec.HostedCluster.Release.Image != "atoll.dev/release:1.36.2" || c.Generation != 3 {
			t.Errorf("rolled back: generation %d, %v", c.Generation, err)
		}
	}
	report("RolledBack", "")
	if err := order("1.36.3"); err != nil {
		t.Fatal(err)
	}
	_, err = rollback()
	isRefused("an upgrade that the report does not have yet", err, 409, "ROLLBACK-012")
	for name, more := range map[string]string{
		"Completed": "", "Soaking": `,"soakUntil":"2026-01-02T00:00:00Z"`,
	} {
		report(name, more)
		_, err = rollback()
		isRefused(name+", whose soak has ended", err, 409, "ROLLBACK-012")
	}
	report("Failed", `,"message":"it ended","copyUsed":true`)
	c, err = p.Cluster(ctx, id)
	if u := c.Status.Upgrade; err != nil || !u.CanRollBack || u.Message != "it ended" || u.LostAfter == nil ||
		!u.LostAfter.Equal(*u.StartedAt) {
		t.Errorf("failed: %+v, %v", u, err)
	}
	if c, err := rollback(); err != nil || c.Spec.HostedCluster.Release.Image != "atoll.dev/release:1.36.2" {
		t.Errorf("after the failure: %+v, %v", c.Spec.HostedCluster, err)
	}
}
