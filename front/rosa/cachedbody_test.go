package rosa

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/progress"
)

// The kept body of an answer equals a new one at each later time, for each caller. toCluster has no other parameter.
func TestAKeptBodyIsThatOfANewAnswer(t *testing.T) {
	began := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	moments := rapid.Custom(func(t *rapid.T) time.Time {
		return began.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "hours")) * time.Hour)
	})
	rapid.Check(t, func(t *rapid.T) {
		phases := rapid.SampledFrom([]string{"", cluster.UpgradeRuns, cluster.UpgradeSoaks, cluster.UpgradeCompleted,
			cluster.UpgradeFailed, cluster.UpgradeRollsBack, cluster.UpgradeRolledBack, cluster.UpgradeRollbackFailed})
		upgrade := `null`
		if phase := phases.Draw(t, "phase"); phase != "" {
			soak := moments.Draw(t, "soakUntil").Format(time.RFC3339)
			upgrade = fmt.Sprintf(`{"from":"1.36.2","to":"1.36.3","phase":%q,"startedAt":%q,"soakUntil":%q}`, phase,
				moments.Draw(t, "startedAt").Format(time.RFC3339), soak)
		}
		data := fmt.Sprintf(`{"target_cluster":"mc","power":%q,"version":"1.36.3","upgrade":%s,"rotations":[{"credential":
			"ca","phase":"Prepared","startedAt":%q}],"size":{"class":"Small"}}`, rapid.SampledFrom([]string{"Awake",
			"Asleep"}).Draw(t, "power"), upgrade, moments.Draw(t, "rotation").Format(time.RFC3339))
		r := clmclient.Resource{Derived: &sync.Map{}, Resource: clm.Resource{
			ID: "0b5e4f70-0000-4000-8000-000000000001", Name: "demo", Kind: "Cluster", Version: 7,
			Spec: json.RawMessage(`{"hibernated":true}`),
			Statuses: []clm.AdapterStatus{
				{Adapter: string(cluster.AdapterHostedCluster), Data: json.RawMessage(data)},
				{Adapter: string(cluster.AdapterPlacement), Data: json.RawMessage(`{"management_cluster":"mc"}`)},
			},
		}}
		now := began
		for range 6 {
			now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "later, hours")) * time.Hour)
			visibility := rapid.SampledFrom([]progress.Visibility{progress.HidePlacement, progress.ShowPlacement}).Draw(t,
				"visibility")
			got, err := clusterBody(r, visibility, now)
			if err != nil {
				t.Fatal(err)
			}
			fresh := r
			fresh.Derived = nil
			want, err := clusterBody(fresh, visibility, now)
			if err != nil || string(got) != string(want) {
				t.Fatalf("at %s: %s\nwithout keeping: %s, %v", now, got, want, err)
			}
		}
	})
}
